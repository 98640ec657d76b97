//! The protocol's status codes (SPOE.txt section 3.5), as far as an agent needs them.

/// The status of an AGENT-DISCONNECT.
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
        self.row().2
    }

    const fn row(self) -> (u64, &'static str, &'static str) {
        match self {
            Self::Normal => (0, "normal", "normal"),
            Self::Timeout => (2, "a timeout occurred", "timeout"),
            Self::TooBig => (3, "frame is too big", "too_big"),
            Self::Invalid => (4, "invalid frame received", "invalid"),
            Self::NoVersion => (5, "version value not found", "no_version"),
            Self::NoFrameSize => (6, "max-frame-size value not found", "no_frame_size"),
            Self::NoCapabilities => (7, "capabilities value not found", "no_capabilities"),
            Self::BadVersion => (8, "unsupported version", "bad_version"),
            Self::BadFrameSize => (9, "max-frame-size too big or too small", "bad_frame_size"),
            Self::Fragmented => (10, "fragmentation not supported", "fragmented"),
        }
    }
}
