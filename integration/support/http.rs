//! A client that says exactly what it is told to, and times the answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection that is kept alive.
pub(crate) struct Connection {
    stream: BufReader<TcpStream>,
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Names in lower case, in the order of the lines.
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: String,
    /// From the first byte sent to the last one received.
    pub(crate) took: Duration,
}

impl Connection {
    #[track_caller]
    pub(crate) fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    /// A GET without a body.
    #[track_caller]
    pub(crate) fn get(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let mut head = format!("GET {path} HTTP/1.1\r\nhost: weir.test\r\n");
        for &(name, value) in fields {
            head.extend([name, ": ", value, "\r\n"]);
        }
        head.push_str("\r\n");
        let start = Instant::now();
        self.stream.get_mut().write_all(head.as_bytes()).unwrap();
        self.answer(start)
    }

    #[track_caller]
    fn answer(&mut self, start: Instant) -> Answer {
        let line = self.line();
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("`{line}` is no status line"));
        let mut fields = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else { break };
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = fields.iter().find(|(name, _)| name == "content-length");
        let mut body = vec![0; length.map_or(0, |(_, length)| length.parse().unwrap())];
        self.stream.read_exact(&mut body).unwrap();
        Answer { status, fields, body: String::from_utf8(body).unwrap(), took: start.elapsed() }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Answer {
    /// The value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }
}
