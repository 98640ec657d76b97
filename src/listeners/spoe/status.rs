//! Why a connection ends: the status codes of the protocol (SPOE.txt section 3.5), those that an agent has a use for.

/// The status of an AGENT-DISCONNECT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    /// Nothing is wrong: the process ends, or `HAProxy` has said farewell.
    Normal,
    /// The next frame, or its end, did not come in time.
    Timeout,
    /// A frame is longer than was agreed.
    TooBig,
    /// What came is no frame, or none that may come now.
    Invalid,
    /// The HELLO has no `supported-versions`.
    NoVersion,
    /// The HELLO has no `max-frame-size`.
    NoFrameSize,
    /// The HELLO has no `capabilities`.
    NoCapabilities,
    /// The HELLO names no version that is spoken here.
    BadVersion,
    /// The HELLO's `max-frame-size` is below what the protocol demands.
    BadFrameSize,
    /// A frame is a fragment.
    Fragmented,
}

impl Status {
    /// The number on the wire.
    pub(super) const fn code(self) -> u64 {
        match self {
            Self::Normal => 0,
            Self::Timeout => 2,
            Self::TooBig => 3,
            Self::Invalid => 4,
            Self::NoVersion => 5,
            Self::NoFrameSize => 6,
            Self::NoCapabilities => 7,
            Self::BadVersion => 8,
            Self::BadFrameSize => 9,
            Self::Fragmented => 10,
        }
    }

    /// The text beside the number.
    pub(super) const fn message(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Timeout => "a timeout occurred",
            Self::TooBig => "frame is too big",
            Self::Invalid => "invalid frame received",
            Self::NoVersion => "version value not found",
            Self::NoFrameSize => "max-frame-size value not found",
            Self::NoCapabilities => "capabilities value not found",
            Self::BadVersion => "unsupported version",
            Self::BadFrameSize => "max-frame-size too big or too small",
            Self::Fragmented => "fragmentation not supported",
        }
    }

    /// The label `reason` of `weir_spoe_disconnects_total`.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Timeout => "timeout",
            Self::TooBig => "too_big",
            Self::Invalid => "invalid",
            Self::NoVersion => "no_version",
            Self::NoFrameSize => "no_frame_size",
            Self::NoCapabilities => "no_capabilities",
            Self::BadVersion => "bad_version",
            Self::BadFrameSize => "bad_frame_size",
            Self::Fragmented => "fragmented",
        }
    }
}
