//! gRPC's health service, the equivalent of `/readyz`. All services share one status.
//!
//! A process that starts or drains is not serving. Losing the store does not matter, because limits have `on_store_error`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::sync::watch::Receiver;

use super::calls::{SERVICES, StreamPermit};
use super::messages::Memory;
use super::messages::health::{
    HealthCheckRequest, HealthCheckResponse, HealthListResponse, ServiceStatus, ServingStatus,
};
use super::protocol::{Code, Status, frame};
use crate::engine::text::quote::shown;
use crate::http::message::{BodyError, BodyStream, Piece};
use crate::listeners::admin::{Phase, Readiness};

/// The service under which envoyproxy/ratelimit tells its health, and Envoys ask for it.
const ENVOY_RATELIMIT: &str = "ratelimit";

const fn status(phase: Phase) -> ServingStatus {
    match phase {
        Phase::Serving => ServingStatus::Serving,
        Phase::Starting | Phase::Draining => ServingStatus::NotServing,
    }
}

const fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

/// `Check`: one service, or with no name the process.
pub(super) fn check(readiness: &Readiness, request: &HealthCheckRequest) -> Result<HealthCheckResponse, Status> {
    if is_known(&request.service) {
        Ok(response(status(readiness.phase())))
    } else {
        Err(Status::new(Code::NotFound, format!("unknown service `{}`", shown(&request.service, 80))))
    }
}

/// `List`: the process and each service.
pub(super) fn list(readiness: &Readiness) -> HealthListResponse {
    let value = Some(response(status(readiness.phase())));
    let names = std::iter::once("").chain(SERVICES);
    HealthListResponse { statuses: names.map(|name| ServiceStatus { key: name.to_owned(), value }).collect() }
}

fn is_known(name: &str) -> bool {
    name.is_empty() || name == ENVOY_RATELIMIT || SERVICES.contains(&name)
}

/// `Watch`: the status now and after each change, until the process ends.
pub(super) struct Watch {
    next: Pin<Box<dyn Future<Output = (Option<Piece>, WatchState)>>>,
}

struct WatchState {
    phases: Receiver<Phase>,
    is_known: bool,
    sent: Option<ServingStatus>,
    has_ended: bool,
    _permit: StreamPermit,
}

impl Watch {
    pub(super) fn new(readiness: &Readiness, request: &HealthCheckRequest, permit: StreamPermit) -> Self {
        let is_known = is_known(&request.service);
        let phases = readiness.phases();
        Self { next: Box::pin(WatchState { phases, is_known, sent: None, has_ended: false, _permit: permit }.next()) }
    }
}

impl WatchState {
    async fn next(mut self) -> (Option<Piece>, Self) {
        let mut is_closed = false;
        loop {
            // The sender is dropped at the end of the process.
            let phase = if is_closed { Phase::Draining } else { *self.phases.borrow_and_update() };
            // The protocol keeps a watch of an unknown service open, because the service may come.
            let status = if self.is_known { status(phase) } else { ServingStatus::ServiceUnknown };
            if self.sent.replace(status) != Some(status) {
                return (Some(Piece::Data(frame(&response(status), &mut Memory::default()))), self);
            }
            if phase == Phase::Draining {
                let is_last = !std::mem::replace(&mut self.has_ended, true);
                return (is_last.then(|| Piece::Trailers(Status::ending().headers())), self);
            }
            is_closed = self.phases.changed().await.is_err();
        }
    }
}

impl BodyStream for Watch {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece, BodyError>>> {
        let (piece, state) = ready!(self.next.as_mut().poll(cx));
        self.next = Box::pin(state.next());
        Poll::Ready(piece.map(Ok))
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Watch").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::listeners::grpc::calls::Streams;

    fn ask(readiness: &Readiness, service: &str) -> Result<ServingStatus, Code> {
        let request = HealthCheckRequest { service: service.to_owned() };
        check(readiness, &request).map(|found| found.status()).map_err(|status| status.code)
    }

    #[test]
    fn the_status_follows_the_phase_of_the_process() {
        let readiness = Readiness::default();
        assert_eq!(ask(&readiness, ""), Ok(ServingStatus::NotServing));
        readiness.serving();
        assert_eq!(ask(&readiness, SERVICES[0]), Ok(ServingStatus::Serving));
        assert_eq!(ask(&readiness, "ratelimit"), Ok(ServingStatus::Serving));
        assert_eq!(ask(&readiness, "a.C"), Err(Code::NotFound));
        readiness.draining();
        assert_eq!(ask(&readiness, ""), Ok(ServingStatus::NotServing));
        let names: Vec<_> = list(&readiness).statuses.into_iter().map(|one| one.key).collect();
        assert_eq!((names[0].as_str(), &names[1..]), ("", &SERVICES.map(str::to_owned)[..]));
    }

    /// Returns the next status of a watch, `None` while there is nothing, or the end.
    fn next(watch: &mut Watch) -> Option<Result<ServingStatus, String>> {
        match watch.poll_piece(&mut Context::from_waker(std::task::Waker::noop())) {
            Poll::Pending => None,
            Poll::Ready(Some(Ok(Piece::Data(data)))) => {
                Some(Ok(HealthCheckResponse::decode(data.slice(5..)).unwrap().status()))
            }
            Poll::Ready(Some(Ok(Piece::Trailers(headers)))) => {
                Some(Err(headers.text("grpc-status").unwrap().to_owned()))
            }
            Poll::Ready(other) => Some(Err(format!("{other:?}"))),
        }
    }

    #[test]
    fn a_watch_says_what_changes_until_the_end() {
        let (readiness, streams) = (Readiness::default(), Streams::default());
        let watching = |service: &str| {
            let request = HealthCheckRequest { service: service.to_owned() };
            Watch::new(&readiness, &request, streams.begin().unwrap())
        };
        let (mut watch, mut unknown) = (watching(""), watching("a.C"));
        assert_eq!(next(&mut watch), Some(Ok(ServingStatus::NotServing)));
        assert_eq!(next(&mut unknown), Some(Ok(ServingStatus::ServiceUnknown)));
        assert_eq!(next(&mut watch), None);
        readiness.serving();
        assert_eq!(next(&mut watch), Some(Ok(ServingStatus::Serving)));
        assert_eq!((next(&mut watch), next(&mut unknown)), (None, None));
        readiness.draining();
        assert_eq!(next(&mut watch), Some(Ok(ServingStatus::NotServing)));
        assert_eq!(next(&mut watch), Some(Err("14".to_owned())));
        assert_eq!(next(&mut watch), Some(Err("None".to_owned())));
        assert_eq!(next(&mut unknown), Some(Err("14".to_owned())));
    }
}
