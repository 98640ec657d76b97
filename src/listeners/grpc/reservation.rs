//! Reservations of Kuadrant's rate limit service: `Reserve` holds tokens for a request, and `Commit` settles them.

use bytes::Bytes;
use smallvec::SmallVec;

use super::messages::rate_limit::{
    Code as Answer, CommitRequest, CommitResponse, RateLimitRequest, ReserveRequest, ReserveResponse,
};
use super::messages::{Duration, text};
use super::protocol::{Code, Status, decode, frame};
use super::rate_limit::{check, entry, unavailable};
use super::{CallContext, Envoy};
use crate::engine::algorithms::micros::Micros;
use crate::engine::algorithms::reservation::{DEFAULT_HOLD, LONGEST_HOLD, Reservation, ReservationId};
use crate::engine::charging::descriptors::{Descriptor, DescriptorMode, DescriptorRequest, Hits};
use crate::engine::deciding::verdict::VerdictKind;
use crate::engine::request::DescriptorEntry;
use crate::limiter::LimiterVerdict;
use crate::listeners::http::ActiveRequest;
use crate::telemetry::metrics::RateLimitAnswer;

impl Envoy {
    pub(super) async fn reserve(
        &self,
        message: Bytes,
        call: &CallContext<'_>,
        active: &mut ActiveRequest,
    ) -> Result<(RateLimitAnswer, Bytes), Status> {
        let ReserveRequest { domain, descriptors, amount, ttl } = decode(message)?;
        let request = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        let span = span(ttl.unwrap_or_default())?;
        let id = ReservationId(rand::random());
        let (mode, reservation) = match amount {
            0 => (DescriptorMode::Check, None),
            _ => (DescriptorMode::Decide, Some(Reservation::Reserve(id, span))),
        };
        let decided = self.settle(request, mode, Hits::Take(amount), reservation, call, active).await?;
        let (answer, code) = match decided.verdict.kind {
            VerdictKind::Unavailable => return Err(unavailable()),
            VerdictKind::Allowed => (RateLimitAnswer::Ok, Answer::Ok),
            VerdictKind::Denied | VerdictKind::Overloaded => (RateLimitAnswer::OverLimit, Answer::OverLimit),
        };
        // Without a hold, the caller commits without an id: that charges what was used.
        let id = if decided.has_hold == Some(true) { id.to_string() } else { String::new() };
        let response = ReserveResponse { code: code.into(), reservation_id: id };
        Ok((answer, frame(&response, &mut self.answers.borrow_mut().memory)))
    }

    pub(super) async fn commit(
        &self,
        message: Bytes,
        call: &CallContext<'_>,
        active: &mut ActiveRequest,
    ) -> Result<(RateLimitAnswer, Bytes), Status> {
        let CommitRequest { domain, descriptors, reservation_id, actual_amount } = decode(message)?;
        let request = RateLimitRequest { domain, descriptors, hits_addend: 0 };
        let (mode, reservation) = match &reservation_id[..] {
            "" => (DescriptorMode::Report, None),
            given => {
                let id = ReservationId::parse(given);
                let id = id.ok_or_else(|| Status::new(Code::InvalidArgument, "the reservation id is malformed"))?;
                (DescriptorMode::Commit, Some(Reservation::Commit(id)))
            }
        };
        let decided = self.settle(request, mode, Hits::TakeOrDrain(actual_amount), reservation, call, active).await?;
        if reservation.is_some() && decided.has_hold.is_none() {
            // It charges once, however often the caller repeats it.
            return Err(unavailable());
        }
        let response = CommitResponse { reservation_released: decided.has_hold == Some(true) };
        Ok((RateLimitAnswer::Ok, frame(&response, &mut self.answers.borrow_mut().memory)))
    }

    async fn settle(
        &self,
        mut request: RateLimitRequest,
        purpose: DescriptorMode,
        hits: Hits,
        reservation: Option<Reservation>,
        call: &CallContext<'_>,
        active: &mut ActiveRequest,
    ) -> Result<LimiterVerdict, Status> {
        request.make_text();
        check(&request)?;
        let entries: SmallVec<[SmallVec<[DescriptorEntry<'_>; 4]>; 2]> =
            request.descriptors.iter().map(|descriptor| descriptor.entries.iter().map(entry).collect()).collect();
        let descriptors: SmallVec<[Descriptor<'_>; 2]> =
            entries.iter().map(|entries| Descriptor { entries, hits, carried: None }).collect();
        let now = self.front.clock.now();
        let question = DescriptorRequest { domain: text(&request.domain), descriptors: &descriptors, purpose, now };
        self.ask(&question, reservation, call, active).await
    }
}

/// The time for which tokens are held.
fn span(ttl: Duration) -> Result<Micros, Status> {
    let (Ok(seconds), Ok(nanos)) = (u64::try_from(ttl.seconds), u64::try_from(ttl.nanos)) else {
        return Err(Status::new(Code::InvalidArgument, "the ttl is negative"));
    };
    let span = Micros(seconds.saturating_mul(1_000_000).saturating_add(nanos / 1_000));
    Ok(if span == Micros(0) { DEFAULT_HOLD } else { span.min(LONGEST_HOLD) })
}
