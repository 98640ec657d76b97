//! The formats of logs: their names, how the first lines show them, and parsing.

use super::field::Field;
use super::instant::Instants;
use super::json::{self, Dialect, JsonFormat, units};
use super::template::{self, Template};
use super::told::Told;
use super::w3c::{self, Directive, W3c};
use super::{LogEntry, RecordingEnd, Unreadable};
use crate::engine::algorithms::micros::Micros;

/// The longest line that is read, in bytes.
pub const MAX_LINE: usize = 64 * 1024;

/// The lines from which a format is detected, at most.
pub(super) const MAX_SAMPLE: usize = 1_000;

/// The named templates. The order is that of detection: one that others begin like comes after them.
const NAMED: [(&str, &str, IsOpen); 11] = [
    (
        "istio",
        "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% \
         %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% \
         %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \
         \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER% %UPSTREAM_LOCAL_ADDRESS% \
         %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%",
        true,
    ),
    (
        "envoy",
        "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% \
         %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \
         \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\"",
        true,
    ),
    (
        "traefik",
        "%DOWNSTREAM_REMOTE_ADDRESS% - %USER% [%START_TIME%] \"%REQ(:METHOD)% %REQ(:PATH)% %PROTOCOL%\" %RESPONSE_CODE% \
         %BYTES_SENT% \"%REQ(REFERER)%\" \"%REQ(USER-AGENT)%\" %COUNT% \"%ROUTER%\" \"%SERVICE%\" %DURATION%",
        false,
    ),
    ("vhost_combined", "%v:%p %h %l %u %t \"%r\" %>s %O \"%{Referer}i\" \"%{User-Agent}i\"", true),
    (
        "haproxy",
        "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r",
        true,
    ),
    (
        "aws-alb",
        "$type $time_iso8601 $elb $remote_addr $target $request_processing $target_processing $response_processing $status \
         $target_status $received $sent \"$request\" \"$http_user_agent\" $cipher $protocol $group \"$trace\" \"$domain\" \
         \"$certificate\" $priority $start_time \"$actions\"",
        true,
    ),
    (
        "apisix",
        "$remote_addr - $remote_user [$time_local] $http_host \"$request\" $status $body_bytes_sent $request_time \
         \"$http_referer\" \"$http_user_agent\"",
        true,
    ),
    (
        "ingress-nginx",
        "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
         \"$http_user_agent\" $request_length $request_time [$upstream] [$alternative]",
        true,
    ),
    (
        "main",
        "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
         \"$http_user_agent\" \"$http_x_forwarded_for\"",
        true,
    ),
    (
        "combined",
        "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
         \"$http_user_agent\"",
        true,
    ),
    ("common", "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent", true),
];

/// True if lines of a template may have more values at their end.
type IsOpen = bool;

/// The format of a log.
#[derive(Clone, Debug)]
pub struct Format {
    name: String,
    shape: Shape,
    told: Told,
}

#[derive(Clone, Debug)]
enum Shape {
    Text(Template),
    /// Lines that begin with `#` are about the log.
    W3c(Box<W3c>),
    Json(JsonFormat),
}

/// The numbers of lines that a format reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fit {
    /// Those of them with a client or none in its place, and with a request.
    pub(super) with_request: usize,
    /// Those of them with a client or none in its place.
    pub(super) with_client: usize,
    /// Those of them that are not about requests.
    other: usize,
    read: usize,
}

/// A format as `--log-format` gives it. That of JSON depends on a log's first lines, too.
#[derive(Clone, Debug)]
pub struct GivenFormat {
    name: String,
    shape: GivenShape,
}

#[derive(Clone, Debug)]
enum GivenShape {
    Text(Template),
    W3c,
    /// And the meanings of members with names of their own.
    Json(Option<Dialect>, Vec<(String, Field)>),
}

impl GivenFormat {
    /// The format for a log that begins with these lines. Lines that it can't read are counted later. The error says what the log lacks.
    pub fn of_log<'a>(&self, lines: impl Iterator<Item = &'a [u8]> + Clone) -> Result<Format, &'static str> {
        let lines = lines.take(MAX_SAMPLE);
        let shape = match &self.shape {
            GivenShape::Text(template) => Shape::Text(template.clone()),
            GivenShape::W3c => {
                let w3c = W3c::of(lines.clone());
                Shape::W3c(Box::new(
                    w3c.ok_or("it has no `#Fields:` line that names `date` and `time`, as `w3c` needs")?,
                ))
            }
            GivenShape::Json(dialect, names) => Shape::Json(JsonFormat::learn(lines.clone(), *dialect, names)),
        };
        Ok(Format::new(self.name.clone(), shape, lines))
    }
}

/// Behind it stand names of members and the variables of nginx that they are.
const NAMES: &str = "json:";

/// The name of the format whose values the log names itself.
const W3C: &str = "w3c";

/// A named template; `None` if the name is unknown.
fn named(name: &str) -> Option<Result<Template, String>> {
    let (_, template, is_open) = NAMED.iter().find(|(known, ..)| *known == name)?;
    let template = Template::compile(template);
    Some(if *is_open { template.map(Template::open) } else { template })
}

/// All names, for messages.
pub fn names() -> String {
    let names = NAMED.iter().map(|(name, ..)| *name).chain([W3C]).chain(Dialect::all().map(Dialect::name));
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl Format {
    /// A format by its name, a template of nginx, Apache, Envoy or HAProxy, or names of members. The error says what is wrong.
    pub fn named(given: &str) -> Result<GivenFormat, String> {
        let shape = if let Some(template) = named(given) {
            GivenShape::Text(template?)
        } else if given == W3C {
            GivenShape::W3c
        } else if let Some(dialect) = Dialect::all().find(|dialect| dialect.name() == given) {
            // Any names may be meant by `json`.
            GivenShape::Json((dialect != Dialect::Nginx).then_some(dialect), Vec::new())
        } else if let Some(pairs) = given.strip_prefix(NAMES) {
            GivenShape::Json(Some(Dialect::Nginx), json::names(pairs)?)
        } else if let Some(members) = template::json_members(given) {
            GivenShape::Json(Some(Dialect::Nginx), members?)
        } else if given.contains(['$', '%']) {
            GivenShape::Text(Template::compile(given)?)
        } else {
            return Err(format!(
                "unknown format `{given}`: expected {}, `json:NAME=VARIABLE,...`, or a format as nginx, Apache, Envoy or HAProxy write it",
                names()
            ));
        };
        Ok(GivenFormat { name: given.to_owned(), shape })
    }

    /// The format of the lines with which a log begins, if most of them can be read; `None` if no format fits.
    pub fn detect<'a>(lines: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Self> {
        let lines = lines.take(MAX_SAMPLE);
        let json = JsonFormat::learn(lines.clone(), None, &[]);
        let json = Self::new(json.dialect.name().to_owned(), Shape::Json(json), lines.clone());
        let named_by_log =
            W3c::of(lines.clone()).map(|w3c| Self::new(W3C.to_owned(), Shape::W3c(Box::new(w3c)), lines.clone()));
        let templates = NAMED.iter().filter_map(|(name, ..)| {
            let template = named(name)?.ok()?;
            Some(Self::new((*name).to_owned(), Shape::Text(template), lines.clone()))
        });
        let mut formats: Vec<(Self, (usize, usize))> = Vec::new();
        for format in std::iter::once(json).chain(named_by_log).chain(templates) {
            let fit = format.fit(lines.clone());
            formats.push((format, (fit.other + fit.with_client, fit.read)));
        }
        let most = formats.iter().map(|(_, read)| *read).max().filter(|(_, read)| *read > 0)?;
        formats.into_iter().find(|(_, read)| *read == most).map(|(format, _)| format)
    }

    fn new<'a>(name: String, shape: Shape, lines: impl Iterator<Item = &'a [u8]>) -> Self {
        let told = match &shape {
            Shape::Text(template) => template.told(),
            Shape::W3c(w3c) => Told { may_tell_more: true, ..w3c.template.told() },
            Shape::Json(json) => json.told(),
        };
        let mut format = Self { name, shape, told };
        format.told.precision = format.precision(lines);
        format
    }

    /// Counts what can be read of the first lines of a log. A value of a template takes whatever stands in its place, but a client's address.
    pub(super) fn fit<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> Fit {
        let (mut fit, mut parser) = (Fit::default(), self.parser());
        for parsed in lines.take(MAX_SAMPLE).filter_map(|line| parser.parse(line).ok()) {
            fit.read += 1;
            match parsed {
                None => fit.other += 1,
                Some(entry) if entry.unread_client.is_none() => {
                    fit.with_client += 1;
                    let is_request = entry.target.is_some() || entry.is_rejected || entry.descriptors.is_some();
                    fit.with_request += usize::from(is_request);
                }
                Some(_) => {}
            }
        }
        fit
    }

    /// The format of a log without lines.
    pub(super) fn empty() -> Self {
        let json = JsonFormat::learn(std::iter::empty(), Some(Dialect::Weir), &[]);
        Self::new("empty".to_owned(), Shape::Json(json), std::iter::empty())
    }

    /// The coarsest of a second, a millisecond and a microsecond in which these lines write their instants.
    fn precision<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> Micros {
        let mut instants = Instants::new();
        let entries = lines.filter_map(|line| self.parse(line, &mut instants).ok().flatten());
        let precision = entries
            .map(|entry| [1_000_000, 1_000].into_iter().find(|unit| entry.logged.0.is_multiple_of(*unit)).unwrap_or(1));
        Micros(precision.min().unwrap_or(1))
    }

    /// The name that `--log-format` takes.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn told(&self) -> &Told {
        &self.told
    }

    /// Tells in which units durations are read whose names do not say it.
    pub fn notes(&self) -> Vec<String> {
        let note = |name: &str, unit, why| format!("`{name}` is read in {unit}{why}");
        match &self.shape {
            Shape::Text(_) => Vec::new(),
            Shape::W3c(w3c) => {
                let unit = w3c.unit().map(|(unit, why)| note(w3c::TIME_TAKEN, unit, format!(", {why}")));
                unit.into_iter().collect()
            }
            Shape::Json(json) => {
                let why = || "; a name such as `duration_ms` would say it".to_owned();
                json.units().map(|(name, unit)| note(&name, unit, why())).collect()
            }
        }
    }

    /// Infers units from the durations in the first lines of all logs together.
    pub(super) fn infer_units<'a>(formats: impl Iterator<Item = &'a mut Self>) {
        units::infer(
            formats.filter_map(|format| if let Shape::Json(json) = &mut format.shape { Some(json) } else { None }),
        );
    }

    /// The format of the lines behind this one, if that is another one. The error says why it cannot be read.
    pub(super) fn behind(&self, line: &[u8]) -> Option<Result<Self, &'static str>> {
        let Shape::W3c(w3c) = &self.shape else { return None };
        match w3c.follow(line) {
            Directive::Same => None,
            Directive::Other(w3c) => Some(Ok(Self { shape: Shape::W3c(w3c), ..self.clone() })),
            Directive::Unusable => Some(Err("its `#Fields:` name no `date` and `time` any more")),
        }
    }

    /// The text of a line behind which others may have another format; `None` if none may.
    pub(super) const fn mark(&self) -> Option<&'static [u8]> {
        if let Shape::W3c(_) = self.shape { Some(w3c::FIELDS) } else { None }
    }

    /// Returns true for what `weir record` writes.
    pub fn is_recording(&self) -> bool {
        matches!(&self.shape, Shape::Json(json) if json.dialect == Dialect::Recording)
    }

    /// Reads the last line of a recording; `None` for any other line.
    pub fn recording_end(&self, line: &[u8]) -> Option<RecordingEnd> {
        if let Shape::Json(json) = &self.shape { json.recording_end(line) } else { None }
    }

    /// The same format, whose entries have only headers that somebody reads. Those of lines in JSON have all.
    #[must_use]
    pub fn reading(&self, is_read: impl Fn(&str) -> bool) -> Self {
        let mut format = self.clone();
        match &mut format.shape {
            Shape::Text(template) => template.ignore_headers(|name| !is_read(name)),
            Shape::W3c(w3c) => w3c.template.ignore_headers(|name| !is_read(name)),
            Shape::Json(_) => {}
        }
        format
    }

    /// A parser of lines, for one thread.
    pub fn parser(&self) -> Parser<'_> {
        Parser { format: self, instants: Instants::new() }
    }

    fn parse<'a>(&'a self, line: &'a [u8], instants: &mut Instants) -> Result<Option<LogEntry<'a>>, Unreadable> {
        if line.len() > MAX_LINE {
            return Err(Unreadable {
                expected: format!("the end of a line of at most {MAX_LINE} bytes").into(),
                at: MAX_LINE,
            });
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match &self.shape {
            Shape::W3c(_) if w3c::is_directive(line) => Ok(None),
            Shape::Text(template) => template.parse(line, instants).map(Some),
            Shape::W3c(w3c) => w3c.template.parse(line, instants).map(Some),
            Shape::Json(json) => json.parse(line, instants),
        }
    }
}

/// Parses the lines of one format. Remembers the last instant, which the next line often shares.
#[derive(Debug)]
pub struct Parser<'f> {
    format: &'f Format,
    instants: Instants,
}

impl<'f> Parser<'f> {
    /// Returns the request that a line tells; `None` if the line tells of something else, such as the start of a server.
    pub fn parse<'a>(&mut self, line: &'a [u8]) -> Result<Option<LogEntry<'a>>, Unreadable>
    where
        'f: 'a,
    {
        self.format.parse(line, &mut self.instants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logs::told::ToldHeaders;

    fn detected(log: &str) -> Option<Format> {
        Format::detect(log.lines().map(str::as_bytes))
    }

    const COMBINED: &str = r#"192.0.2.7 - - [21/Nov/2026:04:00:06 +0000] "GET /a?b=c HTTP/1.1" 200 5 "-" "curl/8""#;

    #[test]
    fn the_first_lines_show_the_format() {
        for (log, expected) in [
            (COMBINED.to_owned(), "combined"),
            (format!("broken\n{COMBINED} 0.005 x"), "combined"),
            (format!("{COMBINED} \"198.51.100.1\""), "main"),
            (format!("a.example:80 {COMBINED}"), "vhost_combined"),
            (COMBINED.rsplitn(3, " \"").last().unwrap().to_owned(), "common"),
            (format!("{COMBINED} 7 \"router@file\" \"http://127.0.0.1:3000\" 12ms"), "traefik"),
            (
                "[2026-11-21T04:00:06.789Z] \"GET /a HTTP/1.1\" 200 - 0 5 3 2 \"-\" \"curl/8\" \"id\" \"a.example\" \
                 \"127.0.0.1:3000\""
                    .to_owned(),
                "envoy",
            ),
            (r#"{"msec":1.5,"request":"GET / HTTP/1.1"}"#.to_owned(), "json"),
            (r#"{"time":"2026-11-21T04:00:06Z","duration_ms":1,"bytes":5,"protocol":"HTTP/1.1"}"#.to_owned(), "weir"),
            (r#"{"ts":1.5,"logger":"http.log.access","request":{"method":"GET"}}"#.to_owned(), "caddy"),
            (r#"{"ts":1.5,"request":{"method":"GET"},"duration":0.2,"status":200}"#.to_owned(), "caddy"),
            (r#"{"ts":1.5,"request":"GET / HTTP/1.1","logger":"a","duration":0.2}"#.to_owned(), "json"),
            (r#"{"StartUTC":"2026-11-21T04:00:06Z","ClientHost":"192.0.2.7"}"#.to_owned(), "traefik-json"),
            (r#"{"start_time":"2026-11-21T04:00:06Z","response_code":200}"#.to_owned(), "envoy-json"),
        ] {
            assert_eq!(detected(&log).map(|format| format.name), Some(expected.to_owned()), "{log}");
        }
        assert!(detected("nothing\nof this").is_none() && detected("").is_none() && detected("{}").is_none());
    }

    #[test]
    fn a_format_tells_what_its_lines_have() {
        let told = detected(COMBINED).unwrap().told;
        assert!(told.client && told.path && told.query && !told.host && !told.tls_subject && !told.took);
        assert!(told.header("user-agent") && !told.header("x-api-key") && !told.is_arrival);
        assert_eq!(told.precision, Micros(1_000_000));
        let given = Format::named("$msec $request_time $http_x_api_key").unwrap();
        let told = given.of_log([&b"1.005 0.001 k"[..]].into_iter()).unwrap().told;
        assert!(told.is_arrival && told.took && told.header("x-api-key") && !told.client);
        assert_eq!(told.precision, Micros(1_000));
        let own = detected(r#"{"time":"2026-11-21T04:00:06Z","duration_ms":1,"bytes":5,"protocol":"HTTP/1.1"}"#);
        assert!(own.unwrap().told.bytes);
        let caddy = detected(r#"{"ts":1.5,"logger":"http.log.access","request":{"method":"GET"}}"#).unwrap();
        assert!(matches!(caddy.told.headers, ToldHeaders::AllBut(_)) && !caddy.told.header("cookie"));
    }

    #[test]
    fn a_given_format_has_a_name_or_values() {
        for name in
            ["combined", "json", "caddy", "$msec $status", "%t %s", "%START_TIME% %DURATION%", "%ci %tr", "json:a=msec"]
        {
            assert!(Format::named(name).is_ok(), "{name}");
        }
        let error = Format::named("combine").unwrap_err();
        assert!(error.starts_with("unknown format `combine`: expected `istio`, "), "{error}");
    }

    #[test]
    fn a_line_that_is_too_long_is_unreadable() {
        let format = detected(COMBINED).unwrap();
        let error = format.parser().parse(&vec![b'x'; MAX_LINE + 1]).unwrap_err();
        assert_eq!(error.to_string(), "expected the end of a line of at most 65536 bytes at byte 65536");
    }
}
