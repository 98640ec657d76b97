//! The common part of listeners that speak HTTP: reading bodies, deciding, metrics, the access log, traces and errors.

mod active_request;
pub(super) mod body;
pub(super) mod failure;
mod frontend;
mod observers;
mod service;

pub(crate) use self::active_request::ActiveRequest;
pub(crate) use self::frontend::Frontend;
pub use self::frontend::FrontendOptions;
pub(crate) use self::observers::ConnectionObserver;
pub(crate) use self::service::HttpService;
