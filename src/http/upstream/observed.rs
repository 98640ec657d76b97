//! An observer for tests.

use std::cell::Cell;
use std::error::Error;
use std::fmt::Display;
use std::time::Duration;

use super::super::observer::UpstreamObserver;

#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) ejected: Cell<u64>,
}

impl UpstreamObserver for Observed {
    fn answered(&self, _: Duration) {}

    fn failed(&self, _: Option<&dyn Display>, _: &'static str, _: &dyn Error) {}

    fn retried(&self) {}

    fn ejected(&self) {
        self.ejected.set(self.ejected.get() + 1);
    }

    fn unresolved(&self) {}
}
