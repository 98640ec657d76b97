//! Many requests at once, over HTTP/2.

use std::net::SocketAddr;
use std::time::SystemTime;

use http::{Request, Response};
use tokio::net::TcpStream;

/// The connections of a crowd.
const CONNECTIONS: usize = 20;

/// The answer to a request, and when it was sent and answered.
pub(crate) struct CrowdAnswer {
    pub(crate) head: Response<()>,
    pub(crate) sent: SystemTime,
    pub(crate) answered: SystemTime,
}

/// Sends all requests before the first answer, and returns the answers in their order.
pub(crate) fn ask_at_once(address: SocketAddr, requests: Vec<Request<()>>) -> Vec<CrowdAnswer> {
    let asking = async {
        let mut clients = Vec::new();
        for _ in 0..CONNECTIONS {
            let socket = TcpStream::connect(address).await.unwrap();
            let (client, connection) = h2::client::handshake(socket).await.unwrap();
            tokio::spawn(connection);
            clients.push(client);
        }
        let mut asked = Vec::new();
        for (number, request) in requests.into_iter().enumerate() {
            let sent = SystemTime::now();
            let (answer, _) = clients[number % CONNECTIONS].send_request(request, true).unwrap();
            asked.push(tokio::spawn(async move {
                let head = answer.await.unwrap().map(drop);
                CrowdAnswer { head, sent, answered: SystemTime::now() }
            }));
        }
        let mut answers = Vec::new();
        for asked in asked {
            answers.push(asked.await.unwrap());
        }
        answers
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(asking)
}
