//! Clients that do as the plan of each exchange says.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use http::{Request, Version};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

use super::http1::{self, Io, Reader};
use super::http2;
use super::plan::{Course, Framing, Manner, Plan, Random, Side, Way};
use super::{Answer, End, Received, World};

/// The timeout of an exchange, for a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// The most exchanges at a time on a connection of HTTP/2.
const MOST_AT_ONCE: usize = 5;

/// An HTTP/1 connection.
struct Connection {
    reader: Reader<ReadHalf<Box<dyn Io>>>,
    writer: WriteHalf<Box<dyn Io>>,
    /// It may be closed without a word, because the last request was answered before its end.
    may_be_closed: bool,
}

enum Next {
    /// Another exchange on this connection.
    Reuse(Connection),
    Reconnect,
    /// The connection was closed before this exchange began.
    Repeat,
}

/// Has exchanges one after the other over HTTP/1.
pub(super) async fn over_http1(world: Arc<World>, side: Side, numbers: Vec<u64>) {
    let mut open = None;
    for number in numbers {
        if world.has_failed() {
            return;
        }
        let plan = world.plan(number);
        loop {
            let connection = if let Some(connection) = open.take() {
                connection
            } else {
                let (reader, writer) = tokio::io::split(world.connect(side).await);
                Connection { reader: Reader::new(reader), writer, may_be_closed: false }
            };
            match timeout(PATIENCE, exchange(&world, &plan, connection)).await {
                Ok(Next::Reuse(connection)) => open = Some(connection),
                Ok(Next::Reconnect) => {}
                Ok(Next::Repeat) => continue,
                Err(_) => world.fail(format!("no answer within {PATIENCE:?}: {plan:?}")),
            }
            break;
        }
    }
}

async fn exchange(world: &World, plan: &Plan, mut connection: Connection) -> Next {
    let Plan { method, request, .. } = plan;
    let version = if plan.manner == Manner::Old { "1.0" } else { "1.1" };
    let mut head = format!("{method} {} HTTP/{version}\r\nhost: a.example\r\n", plan.path());
    if plan.way == Way::Upgraded {
        head += "connection: upgrade\r\nupgrade: exchange\r\n";
        return tunnel(world, plan, head, connection).await;
    }
    if request.framing != Framing::None {
        head.extend(["content-type: ", request.content_type(), "\r\n"]);
    }
    if plan.manner == Manner::Expecting {
        head += "expect: 100-continue\r\n";
    }
    let trailers = request.trailers(plan.number);
    let Connection { reader, writer, .. } = &mut connection;
    if let Course::ClientLeavesUpload(most) = plan.course {
        let _ = http1::write(writer, head, request, &trailers, most, ready(())).await;
        return Next::Reconnect;
    }
    let (answered, gate) = gate(plan);
    let sending = async {
        if plan.manner == Manner::Expecting {
            return http1::write_after(writer, head, request, &trailers, gate).await;
        }
        http1::write(writer, head, request, &trailers, usize::MAX, gate).await
    };
    let (sent, answer) = tokio::join!(sending, response(plan, reader, answered));
    let Some((answer, stays)) = answer else {
        if connection.may_be_closed {
            return Next::Repeat;
        }
        world.check_response(plan, &Answer::none(End::Closed));
        return Next::Reconnect;
    };
    if let Err(error) = &sent
        && plan.course == Course::Ordinary
    {
        world.fail(format!("the request was not taken: {error}, in {plan:?}"));
    }
    world.check_response(plan, &answer);
    if !stays || answer.received.end != End::Whole || sent.is_err() {
        return Next::Reconnect;
    }
    Next::Reuse(Connection { may_be_closed: plan.course != Course::Ordinary, ..connection })
}

/// Returns a future that is ready once the sender is dropped, or at once if the client does not wait for the answer.
fn gate(plan: &Plan) -> (oneshot::Sender<()>, impl Future<Output = ()> + use<>) {
    let (answered, opened) = oneshot::channel();
    let is_open = !plan.awaits_answer && plan.manner != Manner::Expecting;
    (answered, async move {
        if !is_open {
            let _ = opened.await;
        }
    })
}

/// Reads a response. Returns it and whether another may follow; `None` if the connection was closed instead.
async fn response(
    plan: &Plan,
    reader: &mut Reader<ReadHalf<Box<dyn Io>>>,
    answered: oneshot::Sender<()>,
) -> Option<(Answer, bool)> {
    let (mut answered, mut interim) = (Some(answered), 0);
    let (head, status) = loop {
        let head = match reader.head().await {
            Ok(head) => head?,
            Err(end) => return Some((Answer::none(end), false)),
        };
        let status = head.start.split(' ').nth(1).and_then(|status| status.parse().ok());
        match status {
            Some(100) if plan.manner == Manner::Expecting => drop(answered.take()),
            Some(103) if plan.has_interim && plan.manner != Manner::Old => interim += 1,
            _ => break (head, status),
        }
    };
    drop(answered);
    if interim > 1 {
        return Some((Answer::none(End::Malformed(format!("{interim} interim responses"))), false));
    }
    let mark = head.header("x-exchange").map(str::to_owned);
    let framing = match head.framing(true) {
        _ if plan.method == "HEAD" || status == Some(204) => (Framing::None, 0),
        Ok((Framing::Close, _)) if plan.manner != Manner::Old => {
            return Some((Answer::none(End::Malformed("a body without an end".to_owned())), false));
        }
        Ok(framing) => framing,
        Err(end) => return Some((Answer::none(end), false)),
    };
    let most = if let Course::ClientLeavesDownload(most) = plan.course { most } else { usize::MAX };
    let received = reader.body(framing, most).await;
    let stays = plan.manner != Manner::Old && head.header("connection") != Some("close");
    Some((Answer { status, mark, received }, stays))
}

async fn tunnel(world: &World, plan: &Plan, head: String, connection: Connection) -> Next {
    let Connection { mut reader, mut writer, may_be_closed } = connection;
    let mut start = (head + "\r\n").into_bytes();
    // Some send right behind the head what the upstream is to read after it has switched.
    let ahead = if plan.request.head_first { 0 } else { plan.request.bytes.len().min(5_000) };
    start.extend_from_slice(&plan.request.bytes[..ahead]);
    let begun = writer.write_all(&start).await.and(writer.flush().await);
    let head = match reader.head().await {
        Ok(Some(head)) => head,
        Ok(None) if may_be_closed => return Next::Repeat,
        other => {
            world.fail(format!("{other:?} instead of a tunnel in {plan:?}"));
            return Next::Reconnect;
        }
    };
    if !head.start.contains(" 101 ") || head.header("x-exchange") != Some(&plan.number.to_string()) {
        world.fail(format!("{head:?} instead of a tunnel in {plan:?}"));
        return Next::Reconnect;
    }
    let rest = plan.request.after(ahead);
    let (sent, received) = tokio::join!(http1::write_raw(&mut writer, Vec::new(), &rest), reader.rest());
    if let Err(error) = begun.and(sent) {
        world.fail(format!("the tunnel's bytes were not taken: {error}, in {plan:?}"));
    }
    if received != plan.response.bytes {
        world.fail(format!("{} bytes came back through the tunnel of {plan:?}", received.len()));
    }
    Next::Reconnect
}

/// A connection, and the task that drives it until this is dropped.
struct Http2Connection {
    sender: SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Drop for Http2Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Has some exchanges at a time over HTTP/2.
pub(super) async fn over_http2(world: Arc<World>, side: Side, mut numbers: Vec<u64>) {
    let mut random = Random::new(world.seed ^ numbers[0]);
    let mut open: Option<Http2Connection> = None;
    while !numbers.is_empty() && !world.has_failed() {
        let connection = if let Some(connection) = open.take() {
            connection
        } else {
            let io = world.connect(side).await;
            let (sender, connection) = h2::client::handshake(io).await.unwrap();
            let driver = tokio::spawn(async move { drop(connection.await) });
            Http2Connection { sender, driver }
        };
        let count = 1 + random.below(MOST_AT_ONCE.min(numbers.len()));
        let mut exchanges = JoinSet::new();
        for number in numbers.drain(..count) {
            exchanges.spawn(stream(world.clone(), side, number, connection.sender.clone()));
        }
        exchanges.join_all().await;
        if random.below(8) != 0 {
            open = Some(connection);
        }
    }
}

async fn stream(world: Arc<World>, side: Side, number: u64, sender: SendRequest<Bytes>) {
    let plan = world.plan(number);
    match timeout(PATIENCE, exchange_stream(&plan, side, sender)).await {
        Ok(Some(answer)) => world.check_response(&plan, &answer),
        Ok(None) => {}
        Err(_) => world.fail(format!("no answer within {PATIENCE:?}: {plan:?}")),
    }
}

/// Returns the answer unless it leaves before there is one.
async fn exchange_stream(plan: &Plan, side: Side, sender: SendRequest<Bytes>) -> Option<Answer> {
    let cut = |error: h2::Error| Answer::none(End::Cut(error.to_string()));
    let body = &plan.request;
    let scheme = if side.is_tls { "https" } else { "http" };
    let mut head = Request::builder()
        .method(plan.method)
        .uri(format!("{scheme}://a.example{}", plan.path()))
        .version(Version::HTTP_2)
        .body(())
        .unwrap();
    let is_end = body.framing == Framing::None;
    if !is_end {
        http2::headers(body, head.headers_mut());
    }
    let trailers = body.trailers(plan.number);
    let mut sender = match sender.ready().await {
        Ok(sender) => sender,
        Err(error) => return Some(cut(error)),
    };
    let (response, mut stream) = match sender.send_request(head, is_end) {
        Ok(sent) => sent,
        Err(error) => return Some(cut(error)),
    };
    if let Course::ClientLeavesUpload(most) = plan.course {
        if !is_end {
            let _ = http2::write(&mut stream, body, &trailers, most, ready(())).await;
        }
        stream.send_reset(Reason::CANCEL);
        return None;
    }
    let (answered, gate) = gate(plan);
    let sending = async {
        if !is_end {
            let _ = http2::write(&mut stream, body, &trailers, usize::MAX, gate).await;
        }
    };
    let most = if let Course::ClientLeavesDownload(most) = plan.course { most } else { usize::MAX };
    let receiving = async {
        let (head, mut body) = match response.await {
            Ok(response) => response.into_parts(),
            Err(error) => return cut(error),
        };
        drop(answered);
        let mark = head.headers.get("x-exchange").and_then(|mark| mark.to_str().ok()).map(str::to_owned);
        let received: Received = http2::read(&mut body, most).await;
        Answer { status: Some(head.status.as_u16()), mark, received }
    };
    let ((), answer) = tokio::join!(sending, receiving);
    if answer.received.end == End::Left {
        stream.send_reset(Reason::CANCEL);
    }
    Some(answer)
}
