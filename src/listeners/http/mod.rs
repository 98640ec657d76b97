//! What the listeners that speak HTTP add to [`crate::http`]: metrics, the access log, traces, slots, and their own errors.

mod counting;
pub(super) mod failure;
mod frontend;
mod passage;

pub(crate) use self::frontend::Frontend;
pub use self::frontend::FrontendOptions;
pub(crate) use self::passage::Passage;
