//! A server that speaks Redis' protocol and answers every script call with one error.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Its threads end with their connections, or with the process.
pub(crate) struct SayingServer {
    pub(crate) address: SocketAddr,
}

impl SayingServer {
    /// `SELF` in the error stands for the server's address.
    pub(crate) fn start(error: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let error = error.replace("SELF", &address.to_string());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let error = error.clone();
                std::thread::spawn(move || {
                    let mut reader = BufReader::new(client.try_clone().unwrap());
                    while let Some(words) = command(&mut reader) {
                        let reply = reply(&words, &error, address.port());
                        if (&client).write_all(reply.as_bytes()).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        Self { address }
    }
}

/// Reads an array of bulk strings; `None` at the end.
fn command(reader: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let number = |kind: char, reader: &mut BufReader<TcpStream>| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(kind)?.parse::<usize>().ok()
    };
    let words = number('*', reader)?;
    let word = |_| {
        let mut bytes = vec![0; number('$', reader)? + 2];
        reader.read_exact(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim_end().to_owned())
    };
    (0..words).map(word).collect()
}

fn reply(words: &[String], error: &str, port: u16) -> String {
    let second = words.get(1).map_or("", String::as_str);
    match (words[0].to_uppercase().as_str(), second.to_uppercase().as_str()) {
        ("HELLO", _) => "*0\r\n".into(),
        ("PING", _) => format!("${}\r\n{second}\r\n", second.len()),
        ("CLUSTER", "INFO") => "$18\r\ncluster_state:ok\r\n\r\n".into(),
        ("CLUSTER", "SLOTS") => format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n"),
        ("EVAL" | "EVALSHA", _) => format!("-{error}\r\n"),
        _ => "+OK\r\n".into(),
    }
}
