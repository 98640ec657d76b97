//! The protocol's status codes (SPOE.txt section 3.5), as far as an agent needs them.

pub(super) use crate::telemetry::metrics::SpoeStatus as Status;

impl Status {
    pub(super) const fn code(self) -> u64 {
        self.row().0
    }

    pub(super) const fn message(self) -> &'static str {
        self.row().1
    }

    const fn row(self) -> (u64, &'static str) {
        match self {
            Self::Normal => (0, "normal"),
            Self::Timeout => (2, "a timeout occurred"),
            Self::TooBig => (3, "frame is too big"),
            Self::Invalid => (4, "invalid frame received"),
            Self::NoVersion => (5, "version value not found"),
            Self::NoFrameSize => (6, "max-frame-size value not found"),
            Self::NoCapabilities => (7, "capabilities value not found"),
            Self::BadVersion => (8, "unsupported version"),
            Self::BadFrameSize => (9, "max-frame-size too big or too small"),
            Self::Fragmented => (10, "fragmentation not supported"),
        }
    }
}
