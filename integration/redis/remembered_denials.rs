//! Denials that a gateway remembers for a moment, over sockets.

use crate::support::redis::RedisServer;
use crate::support::weir::Weir;

const LIMITS: &str = "limits:\n  L: { by: { header: x-id }, burst: 5, count: 5, period: 1h }\n";

fn serve(limits: &str, redis: &RedisServer) -> Weir {
    let weir = Weir::serve(limits, &["--store", &redis.url(), "--workers", "1"]);
    weir.until_connected();
    weir
}

/// The scripts that the server has run.
fn calls(redis: &RedisServer) -> u64 {
    ["evalsha", "eval", "fcall"].iter().map(|command| redis.calls(command)).sum()
}

#[test]
fn a_flood_of_one_denied_id_hardly_asks_redis_and_is_counted_whole() {
    let redis = RedisServer::plain();
    let weir = serve(LIMITS, &redis);
    let before = calls(&redis);
    let mut wire = weir.connect();
    let answers: Vec<_> = (0..2_000).map(|_| wire.get_with("/", &[("x-id", "7")])).collect();
    let denied = answers.iter().filter(|answer| answer.status() == 429).count();
    assert_eq!((denied, answers.iter().take(5).filter(|answer| answer.status() == 200).count()), (1_995, 5));
    let asked = calls(&redis) - before;
    assert!(asked <= 300, "{asked} calls");
    assert_eq!(weir.metric("weir_decisions_total{limit=\"L\",result=\"denied\"}"), 1_995);
    let remembered = weir.metric("weir_remembered_denials_total");
    assert!(remembered >= 1_700, "{remembered}");
    // One token takes 12 minutes; each answer counts from its own time.
    let waits: Vec<u64> =
        answers[5..].iter().map(|answer| answer.header("retry-after").unwrap().parse().unwrap()).collect();
    assert!(waits.is_sorted_by(|earlier, later| earlier >= later) && (700..=720).contains(&waits[0]), "{waits:?}");
}

#[test]
fn what_others_take_in_between_is_in_the_next_denial() {
    let limits = "limits:
  Cost: { by: { header: x-cost-id }, burst: 10, count: 10, period: 1h, cost: { header: x-cost } }
  Both: { by: { header: x-both }, count: 1, period: 2h }
";
    let redis = RedisServer::plain();
    let weir = serve(limits, &redis);
    let mut wire = weir.connect();
    let (half, one) = (("x-cost", "5"), ("x-cost", "1"));
    let (first, second, both) = (("x-cost-id", "1"), ("x-cost-id", "2"), ("x-both", "1"));
    for (headers, status, wait) in [
        (&[first, ("x-cost", "8")][..], 200, 0),
        (&[first, half], 429, 1_080),
        (&[first, ("x-cost", "2")], 200, 0),
        (&[first, half], 429, 1_800),
        // Another limit denies the same request for longer.
        (&[second, ("x-cost", "10")], 200, 0),
        (&[second, one, both], 429, 360),
        (&[both], 200, 0),
        (&[second, one, both], 429, 7_200),
    ] {
        let answer = wire.get_with("/", headers);
        let told: u64 = answer.header("retry-after").map_or(0, |wait| wait.parse().unwrap());
        assert!(answer.status() == status && (told..told + 60).contains(&wait), "{headers:?}: {answer:?}");
    }
}
