//! Plans of exchanges, drawn from a seed and a number. Both ends draw the same plan, so the number is all that they exchange.

use std::fmt::{self, Debug};
use std::sync::LazyLock;

use bytes::Bytes;

/// Pseudo-random numbers; splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    /// True once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }
}

/// The limit that a request meets, beside a plain one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    /// Its id is in the body.
    Id,
    /// Its cost is in the body.
    Cost,
    RequestBytes,
    ResponseBytes,
    /// Its cost is in the response's JSON, or in its events.
    Usage,
    Delayed,
    Upgraded,
}

impl Way {
    const ALL: [Self; 8] = [
        Self::Plain,
        Self::Id,
        Self::Cost,
        Self::RequestBytes,
        Self::ResponseBytes,
        Self::Usage,
        Self::Delayed,
        Self::Upgraded,
    ];

    /// The second segment of its requests' paths.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Id => "id",
            Self::Cost => "cost",
            Self::RequestBytes => "request-bytes",
            Self::ResponseBytes => "response-bytes",
            Self::Usage => "usage",
            Self::Delayed => "delayed",
            Self::Upgraded => "upgraded",
        }
    }
}

/// No bucket is ever empty. In `Delayed`, each request waits until the one before has had its millisecond or two.
pub(super) const RULES: &str = "
limits:
  Plain: { by: global, burst: 1000000 }
  Id: { match: { path: '/{upstream}/id/**' }, by: { body: /id }, missing: shared, burst: 1000000 }
  Cost: { match: { path: '/{upstream}/cost/**' }, by: global, burst: 1000000000, cost: { body: /cost, malformed: default } }
  RequestBytes: { match: { path: '/{upstream}/request-bytes/**' }, by: global, burst: 1000000000, cost: { bytes: request } }
  ResponseBytes:
    match: { path: '/{upstream}/response-bytes/**' }
    by: global
    burst: 1000000000
    cost_from_response: { bytes: response, reserve: 10 }
  Usage:
    match: { path: '/{upstream}/usage/**' }
    by: global
    burst: 1000000000
    cost_from_response: { usage: openai, reserve: 10 }
  Delayed: { match: { path: '/{upstream}/delayed/**' }, by: global, burst: 1, count: 500, period: 1s, delay: 60s }
";

/// One end of an exchange: its protocol, and whether it uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) is_http2: bool,
    pub(super) is_tls: bool,
}

impl Side {
    pub(super) const ALL: [Self; 4] = [
        Self { is_http2: false, is_tls: false },
        Self { is_http2: true, is_tls: false },
        Self { is_http2: false, is_tls: true },
        Self { is_http2: true, is_tls: true },
    ];

    /// The first segment of the paths of an upstream's requests.
    pub(super) const fn name(self) -> &'static str {
        match (self.is_http2, self.is_tls) {
            (false, false) => "http1",
            (true, false) => "http2",
            (false, true) => "tls1",
            (true, true) => "tls2",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// No body, and no word of one.
    None,
    Length,
    /// Chunks, or frames without a length.
    Stream,
    /// Until the connection closes.
    Close,
}

/// The content of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bytes,
    Json,
    Events,
    /// With a byte order mark.
    MarkedEvents,
}

/// A body and how it is sent.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
pub(super) struct Body {
    pub(super) bytes: Bytes,
    pub(super) framing: Framing,
    form: Form,
    /// The most bytes of a piece.
    pub(super) piece: usize,
    /// The end comes with the last piece, not after it.
    pub(super) ends_with_piece: bool,
    /// The head is sent before the first piece, not with it.
    pub(super) head_first: bool,
    has_trailers: bool,
    /// There are blanks behind the sizes of chunks.
    pub(super) is_padded: bool,
}

impl Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, framing, form, piece, ends_with_piece, head_first, has_trailers, is_padded } = self;
        write!(f, "{} bytes {form:?} by {framing:?} in pieces of {piece}, ", bytes.len())?;
        write!(
            f,
            "end with piece {ends_with_piece}, head first {head_first}, trailers {has_trailers}, padded {is_padded}"
        )
    }
}

/// The course of an exchange. Numbers are bytes of the body after which one side leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    Ordinary,
    /// The upstream answers before it reads the body, which it reads to its end or not.
    Early {
        reads_on: bool,
    },
    ClientLeavesUpload(usize),
    ClientLeavesDownload(usize),
    UpstreamLeavesUpload(usize),
    UpstreamLeavesDownload(usize),
}

/// The manner of a client of HTTP/1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    Usual,
    /// It speaks HTTP/1.0.
    Old,
    /// It asks before it sends its body.
    Expecting,
}

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) number: u64,
    pub(super) client: Side,
    pub(super) upstream: Side,
    pub(super) way: Way,
    pub(super) course: Course,
    /// The client sends the end of its body once the answer begins.
    pub(super) awaits_answer: bool,
    pub(super) manner: Manner,
    /// The upstream sends an interim response first.
    pub(super) has_interim: bool,
    pub(super) method: &'static str,
    pub(super) status: u16,
    pub(super) request: Body,
    pub(super) response: Body,
}

impl Plan {
    /// The plan of the exchange of this number, whose lowest bits say who takes part.
    pub(super) fn of(seed: u64, number: u64) -> Self {
        let mut random = Random::new(seed ^ number.wrapping_mul(0xD134_2543_DE82_EF95));
        let place = usize::try_from(number).unwrap();
        let (client, upstream) = (Side::ALL[place % 4], Side::ALL[place / 4 % 4]);
        let mut way = random.one_of(&Way::ALL);
        if way == Way::Upgraded && (client.is_http2 || upstream == Side::ALL[1]) {
            way = Way::Plain;
        }
        let (request_form, response_form) = match way {
            Way::Id | Way::Cost => (Form::Json, Form::Bytes),
            Way::Usage => (Form::Bytes, random.one_of(&[Form::Json, Form::Events, Form::MarkedEvents])),
            _ => (Form::Bytes, Form::Bytes),
        };
        let framings = [Framing::None, Framing::Length, Framing::Length, Framing::Stream, Framing::Stream];
        let request_framing = random.one_of(&framings);
        let is_close = !upstream.is_http2 && random.once_in(6);
        let response_framing = if is_close { Framing::Close } else { random.one_of(&framings) };
        let mut plan = Self {
            number,
            client,
            upstream,
            way,
            course: Course::Ordinary,
            awaits_answer: false,
            manner: Manner::Usual,
            has_interim: random.once_in(6),
            method: "POST",
            status: 200,
            request: Body::random(&mut random, request_framing, request_form, client.is_http2),
            response: Body::random(&mut random, response_framing, response_form, upstream.is_http2),
        };
        // An old client's chunks must not have blanks.
        plan.request.is_padded = false;
        if way == Way::Upgraded {
            plan.method = "GET";
            return plan;
        }
        if plan.request.framing == Framing::None {
            plan.method = if random.once_in(5) { "HEAD" } else { "GET" };
        }
        if plan.response.framing == Framing::None && random.once_in(2) {
            plan.status = 204;
        }
        if random.once_in(4) {
            plan.course = plan.irregular(&mut random);
        }
        plan.manner = plan.manner(&mut random);
        // The proxy reads some bodies before it asks the upstream.
        let is_read_first = matches!(way, Way::Id | Way::Cost);
        let may_wait = !is_read_first && plan.manner == Manner::Usual;
        plan.awaits_answer = matches!(plan.course, Course::Early { .. }) && may_wait && random.once_in(2);
        plan
    }

    fn manner(&self, random: &mut Random) -> Manner {
        // HTTP/1.0 may end a body with the connection only, which does not show that it is cut off.
        let may_be_old = self.request.framing != Framing::Stream && !self.may_break_off();
        match random.below(8) {
            _ if self.client.is_http2 => Manner::Usual,
            0 if may_be_old => Manner::Old,
            1 if self.request.framing != Framing::None => Manner::Expecting,
            _ => Manner::Usual,
        }
    }

    fn irregular(&self, random: &mut Random) -> Course {
        let upload = random.below(self.request.bytes.len() + 1);
        let download = random.below(self.response.bytes.len().max(1));
        let has_upload = self.request.framing != Framing::None;
        let has_download = !self.response.bytes.is_empty() && self.method != "HEAD";
        match random.below(6) {
            0 | 1 if has_upload => Course::Early { reads_on: true },
            2 if has_upload => Course::Early { reads_on: false },
            3 => Course::ClientLeavesUpload(upload),
            4 => Course::UpstreamLeavesUpload(upload),
            5 if has_download && random.once_in(2) => Course::ClientLeavesDownload(download),
            // What ends with its connection is whole wherever that is.
            5 if has_download && self.response.framing != Framing::Close => Course::UpstreamLeavesDownload(download),
            _ => Course::Ordinary,
        }
    }

    pub(super) fn path(&self) -> String {
        format!("/{}/{}/{}", self.upstream.name(), self.way.name(), self.number)
    }

    /// The number in the path of [`Self::path`].
    pub(super) fn number_in(path: &str) -> Option<u64> {
        path.rsplit('/').next()?.parse().ok()
    }

    /// The body that the client receives.
    pub(super) fn expected_response(&self) -> Bytes {
        if self.method == "HEAD" { Bytes::new() } else { self.response.bytes.clone() }
    }

    /// The trailers that the upstream receives. Those that share a connection with other clients' requests get none.
    pub(super) fn forwarded_trailers(&self) -> Vec<(String, String)> {
        if self.upstream.is_http2 { Vec::new() } else { self.request.trailers_for(self.upstream, self.number) }
    }

    /// The trailers that the client receives.
    pub(super) fn expected_trailers(&self) -> Vec<(String, String)> {
        let takes_none = self.method == "HEAD" || self.manner == Manner::Old;
        if takes_none { Vec::new() } else { self.response.trailers_for(self.client, self.number) }
    }

    /// Returns whether this end of the exchange may find the other one gone.
    pub(super) const fn may_break_off(&self) -> bool {
        !matches!(self.course, Course::Ordinary | Course::Early { reads_on: true })
    }
}

impl Body {
    fn random(random: &mut Random, framing: Framing, form: Form, is_http2: bool) -> Self {
        let size = match framing {
            Framing::None => 0,
            _ => size(random),
        };
        let offset = random.below(POOL / 2);
        let piece = match random.below(4) {
            0 | 1 => usize::MAX,
            2 => 1 + random.below(20_000),
            _ => random.one_of(&[4096, 4097, 8192, 16384, 65536]),
        };
        Self {
            bytes: form.bytes(size, offset),
            framing,
            form,
            // Neither a million writes nor a million chunks.
            piece: piece.max(size / 64),
            ends_with_piece: random.once_in(2),
            head_first: random.once_in(2),
            has_trailers: random.once_in(4) && (framing == Framing::Stream || (is_http2 && framing == Framing::Length)),
            is_padded: random.once_in(8),
        }
    }

    pub(super) const fn content_type(&self) -> &'static str {
        match self.form {
            Form::Bytes => "application/octet-stream",
            Form::Json => "application/json",
            Form::Events | Form::MarkedEvents => "text/event-stream",
        }
    }

    /// The pieces that it is sent in.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Bytes> + use<> {
        let (mut left, piece) = (self.bytes.clone(), self.piece);
        std::iter::from_fn(move || (!left.is_empty()).then(|| left.split_to(piece.min(left.len()))))
    }

    /// The rest of it.
    pub(super) fn after(&self, start: usize) -> Self {
        Self { bytes: self.bytes.slice(start..), ..self.clone() }
    }

    pub(super) fn trailers(&self, number: u64) -> Vec<(String, String)> {
        if self.has_trailers { vec![("x-sum".to_owned(), number.to_string())] } else { Vec::new() }
    }

    /// Its trailers as their receiver gets them: HTTP/1 has no place for them in a body with a length.
    pub(super) fn trailers_for(&self, receiver: Side, number: u64) -> Vec<(String, String)> {
        if receiver.is_http2 || self.framing == Framing::Stream { self.trailers(number) } else { Vec::new() }
    }
}

/// A size on one of the sides of a bound in the code, or anywhere.
fn size(random: &mut Random) -> usize {
    const BOUNDS: [usize; 14] = [0, 1, 4095, 4096, 4097, 8191, 8192, 8193, 16383, 16384, 16385, 65535, 65536, 65537];
    match random.below(100) {
        0 => 1 << 20,
        1..5 => random.below(300_000),
        5..40 => random.below(20_000),
        _ => random.one_of(&BOUNDS),
    }
}

/// Bytes of each pool. Bodies are taken from its first half on.
const POOL: usize = 3 << 20;

/// Random bytes, in which a lost, doubled or swapped one shows. There are requests among them, for a server that takes the
/// body for messages.
static BYTES: LazyLock<Bytes> = LazyLock::new(|| {
    let (mut random, mut bytes) = (Random::new(1), Vec::with_capacity(POOL + 8));
    while bytes.len() < POOL {
        bytes.extend_from_slice(&random.next().to_le_bytes());
        if bytes.len() % 3000 < 8 {
            bytes.extend_from_slice(b"\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n");
        }
    }
    bytes.into()
});

/// Text for strings of JSON.
static TEXT: LazyLock<Bytes> = LazyLock::new(|| {
    let mut random = Random::new(2);
    (0..POOL / 16).flat_map(|_| format!("{:016x}", random.next()).into_bytes()).collect()
});

impl Form {
    /// A body of this form and size.
    fn bytes(self, size: usize, offset: usize) -> Bytes {
        let (start, end) = match self {
            Self::Bytes => return BYTES.slice(offset..offset + size),
            Self::Json => ("{\"id\":\"a\",\"cost\":3,\"usage\":{\"total_tokens\":5},\"text\":\"", "\"}"),
            Self::Events => (": ", "\n\ndata: {\"usage\":{\"total_tokens\":5}}\n\ndata: [DONE]\n\n"),
            Self::MarkedEvents => ("\u{feff}data: {\"usage\":{\"total_tokens\":5}}\n\ndata: ", "\n\n"),
        };
        match size.checked_sub(start.len() + end.len()) {
            None => Bytes::from(vec![b'7'; size]),
            Some(text) => [start.as_bytes(), &TEXT[offset..offset + text], end.as_bytes()].concat().into(),
        }
    }
}
