//! The protocol's status codes (SPOE.txt section 3.5), as far as an agent needs them.

use crate::telemetry::metrics::SPOE_REASONS;

/// The status of an AGENT-DISCONNECT, in the order of [`SPOE_REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// The process ends, or `HAProxy` has disconnected.
    Normal,
    Timeout,
    /// A frame is longer than negotiated.
    TooBig,
    /// Not a frame, or not allowed now.
    Invalid,
    NoVersion,
    NoFrameSize,
    NoCapabilities,
    BadVersion,
    /// Below the protocol's minimum.
    BadFrameSize,
    Fragmented,
}

impl Status {
    pub(super) const fn code(self) -> u64 {
        self.row().0
    }

    pub(super) const fn message(self) -> &'static str {
        self.row().1
    }

    /// The label `reason` of `weir_spoe_disconnects_total`.
    pub(super) const fn label(self) -> &'static str {
        SPOE_REASONS[self as usize]
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

#[cfg(test)]
mod tests {
    use super::Status::*;
    use super::*;

    #[test]
    fn each_status_has_its_reason() {
        let all = [
            Normal,
            Timeout,
            TooBig,
            Invalid,
            NoVersion,
            NoFrameSize,
            NoCapabilities,
            BadVersion,
            BadFrameSize,
            Fragmented,
        ];
        for (status, reason) in all.iter().zip(SPOE_REASONS) {
            assert_eq!((format!("{status:?}").to_lowercase(), status.label()), (reason.replace('_', ""), reason));
        }
        assert_eq!(all.len(), SPOE_REASONS.len());
    }
}
