//! Replies of a cluster's node that has not executed a call: another node has the keys, or none has now.

/// Why a node has not executed a call, which may be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// Another node has the hash slot.
    Moved { slot: u16, node: String },
    /// The hash slot is on its way to another node, which has these keys already.
    Ask { node: String },
    /// The hash slot is on its way, and some of the keys are there and others here.
    TryAgain,
    /// The cluster cannot serve the hash slot now, as during a failover.
    Down,
}

impl Redirect {
    /// Reads an error reply, such as `MOVED 3999 127.0.0.1:6381`. The node is `host:port`; an empty host is that of the node which
    /// replied.
    pub(super) fn of_reply(reply: &str) -> Option<Self> {
        let mut words = reply.split(' ');
        match (words.next()?, words.next().and_then(|slot| slot.parse().ok()), words.next()) {
            ("MOVED", Some(slot), Some(node)) => Some(Self::Moved { slot, node: node.to_owned() }),
            ("ASK", Some(_), Some(node)) => Some(Self::Ask { node: node.to_owned() }),
            ("TRYAGAIN", ..) => Some(Self::TryAgain),
            ("CLUSTERDOWN", ..) => Some(Self::Down),
            _ => None,
        }
    }

    /// What may be wrong if the same reply comes again and again.
    pub(super) const fn hint(&self) -> &'static str {
        match self {
            Self::Moved { .. } | Self::Ask { .. } => {
                "the nodes do not agree on who has the keys, or that one does not answer: check `redis-cli --cluster check`"
            }
            Self::TryAgain => {
                "the keys are at two nodes until their hash slot has moved: `redis-cli --cluster fix` ends a move"
            }
            Self::Down => "no master serves these keys now: `redis-cli --cluster check` says why",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_that_send_a_call_elsewhere_are_told_from_others() {
        let moved = Redirect::Moved { slot: 3999, node: "127.0.0.1:6381".into() };
        assert_eq!(Redirect::of_reply("MOVED 3999 127.0.0.1:6381"), Some(moved));
        assert_eq!(Redirect::of_reply("ASK 3999 ::1:6381"), Some(Redirect::Ask { node: "::1:6381".into() }));
        assert_eq!(
            Redirect::of_reply("TRYAGAIN Multiple keys request during rehashing of slot"),
            Some(Redirect::TryAgain)
        );
        assert_eq!(Redirect::of_reply("CLUSTERDOWN Hash slot not served"), Some(Redirect::Down));
        for other in ["MOVED", "MOVED 70000 h:1", "ASK 1", "OOM command not allowed", "CROSSSLOT Keys in request"] {
            assert_eq!(Redirect::of_reply(other), None, "{other}");
        }
    }
}
