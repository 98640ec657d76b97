//! Upstreams that do as the plan of each request says.

use std::future::ready;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{HeaderValue, Request, Response};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::http1::{self, Head, Io, Reader};
use super::http2;
use super::plan::{Course, Framing, Plan, Side, Way};
use super::{End, World};

/// Serves a connection until one of its ends leaves.
pub(super) async fn serve_http1(world: Arc<World>, side: Side, io: impl Io) {
    let (reader, mut writer) = tokio::io::split(io);
    let mut reader = Reader::new(reader);
    loop {
        let head = match reader.head().await {
            Ok(Some(head)) => head,
            Err(End::Malformed(error)) => return world.fail(format!("a request to {side:?}: {error}")),
            Ok(None) | Err(_) => return,
        };
        let mut words = head.start.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let Some(plan) = world.begin(side, method, path) else { return };
        if plan.way == Way::Upgraded {
            return tunnel(&world, &plan, reader, writer).await;
        }
        if !exchange(&world, &plan, &head, &mut reader, &mut writer).await {
            return;
        }
    }
}

/// Returns whether another request may follow.
async fn exchange<R: tokio::io::AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    world: &World,
    plan: &Plan,
    head: &Head,
    reader: &mut Reader<R>,
    writer: &mut W,
) -> bool {
    let framing = match head.framing(false) {
        Ok(framing) => framing,
        Err(error) => {
            world.fail(format!("{error:?} in {plan:?}"));
            return false;
        }
    };
    let most = match plan.course {
        Course::UpstreamLeavesUpload(most) => {
            world.check_request(plan, &reader.body(framing, most).await);
            return false;
        }
        Course::Early { reads_on } => {
            if !reads_on {
                let _ = answer(writer, plan, usize::MAX).await;
                return false;
            }
            let (answered, received) = tokio::join!(answer(writer, plan, usize::MAX), reader.body(framing, usize::MAX));
            world.check_request(plan, &received);
            return received.end == End::Whole && matches!(answered, Ok(true));
        }
        Course::UpstreamLeavesDownload(most) => most,
        _ => usize::MAX,
    };
    let received = reader.body(framing, usize::MAX).await;
    world.check_request(plan, &received);
    if received.end != End::Whole {
        return false;
    }
    match answer(writer, plan, most).await {
        Ok(is_open) => is_open,
        Err(error) => {
            if !plan.may_break_off() {
                world.fail(format!("the answer was not taken: {error}, in {plan:?}"));
            }
            false
        }
    }
}

/// Returns whether another answer may follow.
async fn answer(writer: &mut (impl AsyncWrite + Unpin), plan: &Plan, most: usize) -> io::Result<bool> {
    let Plan { number, status, response, .. } = plan;
    let kind = response.content_type();
    let interim = if plan.has_interim { "HTTP/1.1 103 X\r\nlink: </a>\r\n\r\n" } else { "" };
    let mut head = format!("{interim}HTTP/1.1 {status} X\r\nx-exchange: {number}\r\ncontent-type: {kind}\r\n");
    if plan.course == (Course::Early { reads_on: false }) {
        head += "connection: close\r\n";
    }
    if plan.method == "HEAD" {
        match response.framing {
            Framing::Length => head.extend(["content-length: ", &response.bytes.len().to_string(), "\r\n"]),
            Framing::Stream => head += "transfer-encoding: chunked\r\n",
            Framing::None | Framing::Close => {}
        }
        writer.write_all((head + "\r\n").as_bytes()).await?;
        writer.flush().await?;
        return Ok(true);
    }
    if response.framing == Framing::None && *status != 204 {
        head += "content-length: 0\r\n";
    }
    let trailers = response.trailers(*number);
    let is_whole = http1::write(writer, head, response, &trailers, most, ready(())).await?;
    if response.framing == Framing::Close {
        writer.shutdown().await?;
        return Ok(false);
    }
    Ok(is_whole)
}

async fn tunnel(
    world: &World,
    plan: &Plan,
    reader: Reader<impl tokio::io::AsyncRead + Unpin>,
    mut writer: impl AsyncWrite + Unpin,
) {
    let mut head = format!("HTTP/1.1 101 X\r\nx-exchange: {}\r\n", plan.number);
    head += "connection: upgrade\r\nupgrade: exchange\r\n\r\n";
    let sending = http1::write_raw(&mut writer, head.into_bytes(), &plan.response);
    let (sent, received) = tokio::join!(sending, reader.rest());
    if let Err(error) = sent {
        world.fail(format!("the tunnel's bytes were not taken: {error}, in {plan:?}"));
    }
    if received != plan.request.bytes {
        world.fail(format!("{} bytes came through the tunnel of {plan:?}", received.len()));
    }
}

/// Serves a connection until it is closed.
pub(super) async fn serve_http2(world: Arc<World>, side: Side, io: impl Io) {
    let Ok(mut connection) = h2::server::handshake(io).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(serve_stream(world.clone(), side, request, respond));
    }
}

async fn serve_stream(world: Arc<World>, side: Side, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let (head, mut body) = request.into_parts();
    let Some(plan) = world.begin(side, head.method.as_str(), head.uri.path()) else { return };
    let most = match plan.course {
        Course::UpstreamLeavesUpload(most) => {
            world.check_request(&plan, &http2::read(&mut body, most).await);
            return respond.send_reset(Reason::INTERNAL_ERROR);
        }
        Course::Early { reads_on } => {
            let answering = answer_stream(respond, &plan, usize::MAX);
            if reads_on {
                let (_, received) = tokio::join!(answering, http2::read(&mut body, usize::MAX));
                world.check_request(&plan, &received);
            } else {
                let _ = answering.await;
            }
            return;
        }
        Course::UpstreamLeavesDownload(most) => most,
        _ => usize::MAX,
    };
    let received = http2::read(&mut body, usize::MAX).await;
    world.check_request(&plan, &received);
    if received.end != End::Whole {
        return;
    }
    if let Err(error) = answer_stream(respond, &plan, most).await
        && !plan.may_break_off()
    {
        world.fail(format!("the answer was not taken: {error}, in {plan:?}"));
    }
}

async fn answer_stream(mut respond: SendResponse<Bytes>, plan: &Plan, most: usize) -> Result<(), h2::Error> {
    let body = &plan.response;
    let mut head = Response::builder().status(plan.status).body(()).unwrap();
    head.headers_mut().insert("x-exchange", HeaderValue::from(plan.number));
    http2::headers(body, head.headers_mut());
    let is_end = plan.method == "HEAD" || body.framing == Framing::None;
    let mut stream = respond.send_response(head, is_end)?;
    let trailers = body.trailers(plan.number);
    if !is_end && !http2::write(&mut stream, body, &trailers, most, ready(())).await? {
        stream.send_reset(Reason::INTERNAL_ERROR);
    }
    Ok(())
}
