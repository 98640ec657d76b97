//! The report of a simulation for programs.

use serde_json::{Map, Value, json};

use super::lists::Customers;
use super::names::Names;
use super::{curves, impact, left_out};
use crate::engine::limit::WHOLE_SHARE;
use crate::engine::text::instant::rfc3339;
use crate::simulation::against::Difference;
use crate::simulation::report::{
    CandidateReport, Delays, DeniedId, LeftOut, LimitLeftOut, LimitReport, RecordingReport, Report, SideReport, Status,
};
use crate::simulation::series::Slice;
use crate::simulation::suggestion::Found;

/// Returns one line of JSON, which begins with what was left out. Keys may be added, but not changed.
pub(super) fn render(report: &Report, names: &Names, customers: &Customers, most: usize) -> String {
    let mut object = side(&report.side, names);
    for limit in &report.side.limits {
        let found = object.get_mut("limits").and_then(|limits| limits.get_mut(&limit.name));
        if let (Some(impact), Some(Value::Object(found))) = (&limit.impact, found) {
            found.insert("impact".into(), impact::json(impact, names, customers, most));
        }
    }
    object.extend(fields(json!({
        "lines": report.lines.lines,
        "unreadable": report.lines.left_out(LeftOut::Unreadable),
        "other_lines": report.lines.left_out(LeftOut::NoRequest),
        "rejected": report.lines.left_out(LeftOut::Rejected),
        "invalid": report.lines.left_out(LeftOut::InvalidEntry),
        "requests": report.requests,
        "answered_429": report.answered_429,
        "maybe_proxied": report.maybe_proxied,
        "one_private_client": report.has_one_private_client,
        "error_logs": report.error_logs,
        "new_members": report.new_members,
        "recordings": report.recordings.iter().map(recording).collect::<Vec<_>>(),
        "late": report.late,
        "overflowed": report.overflowed,
        "settled_early": report.settled_early,
        "undecided": report.undecided,
        "precision_us": report.precision.0,
        "has_arrivals": report.is_arrival,
        "from": report.span.map(|(first, _)| rfc3339(first)),
        "to": report.span.map(|(_, last)| rfc3339(last)),
    })));
    if let (Some(comparison), Some(other)) = (&report.comparison, &report.other) {
        let limits = comparison.limits.iter().map(|limit| {
            let [here, there] = [&limit.only_here, &limit.only_there].map(|side| difference(side, names));
            (limit.name.clone(), json!({ "only_here": here, "only_there": there }))
        });
        let limits: Map<String, Value> = limits.collect();
        object.insert(
            "against".into(),
            json!({
                "only_here": comparison.only_here,
                "only_there": comparison.only_there,
                "both": comparison.both,
                "limits": limits,
                "there": side(other, names),
            }),
        );
    }
    let left_out = left_out::json(report, names.shows_ids());
    let rest = Value::Object(object).to_string();
    let interrupted = json!(report.interrupted);
    let (decided, of_lines) = report.coverage();
    let coverage = json!({ "decided": decided, "of": of_lines });
    format!(
        "{{\"coverage\":{coverage},\"left_out\":{left_out},\"interrupted\":{interrupted},{}",
        rest.trim_start_matches('{')
    )
}

fn recording(recording: &RecordingReport) -> Value {
    json!({
        "file": recording.file,
        "is_whole": recording.end.is_some() && !recording.is_miscounted(),
        "lines": recording.lines,
        "kept": recording.end.and_then(|end| end.kept),
        "dropped": recording.end.map(|end| end.dropped),
        "outside_the_share": recording.end.map(|end| end.outside_the_share),
        "without_a_request": recording.end.map(|end| end.without_a_request),
    })
}

fn side(side: &SideReport, names: &Names) -> Map<String, Value> {
    let limits = (1..).zip(&side.limits).map(|(column, found)| {
        let mut object = limit(found, names);
        object.insert("slices".into(), slices(side.series.column(column)));
        (found.name.clone(), Value::Object(object))
    });
    let limits: Map<String, Value> = limits.collect();
    let slices = slices(side.series.column(0));
    fields(json!({
        "denied": side.denied,
        "delayed": side.delays.map_or(0, |delays| delays.requests),
        "delay_ms": side.delays.and_then(delay),
        "limits": limits,
        "slices_from": rfc3339(side.series.start(0)),
        "slice_seconds": side.series.width().0 / 1_000_000,
        "slices": slices,
    }))
}

fn limit(limit: &LimitReport, names: &Names) -> Map<String, Value> {
    let (status, missing) = match &limit.status {
        Status::Covered => ("covered", Vec::new()),
        Status::NotCovered(missing) => ("not_covered", missing.iter().map(ToString::to_string).collect()),
        Status::Off => ("off", Vec::new()),
    };
    let suggestion = limit.suggestion.as_ref().map(|suggestion| match suggestion {
        Ok(suggestion) => json!({ "burst": suggestion.burst.map(found), "both": suggestion.both.map(found) }),
        Err(reason) => json!({ "none": reason }),
    });
    let curve = limit.curves.as_ref().map(|curves| match curves {
        Ok(curves) => curves::json(curves),
        Err(reason) => json!({ "none": reason }),
    });
    let load = limit.load.map(|load| {
        json!({
            "period_us": load.period.map(|period| period.0),
            "p50": load.p50,
            "p99": load.p99,
            "p999": load.p999,
            "max": load.most,
        })
    });
    let worst = limit.worst.map(|(start, denied)| json!({ "from": rfc3339(start), "denied": denied }));
    let unnamed = limit.candidates.iter().find(|candidate| candidate.name.is_none());
    let named = limit.candidates.iter().filter_map(|of| Some((of.name.as_deref()?.to_owned(), candidate(of))));
    let named: Map<String, Value> = named.collect();
    fields(json!({
        "status": status,
        "missing": missing,
        "mode": if limit.is_enforced { "enforce" } else { "shadow" },
        "numbers": limit.numbers,
        "left_out": limit.left_out.iter().map(left_out_by_limit).collect::<Vec<_>>(),
        "reads": limit.reads.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "requests": limit.requests,
        "exempt": limit.exempt,
        "bans": limit.bans,
        "warnings": limit.warnings,
        "denied": limit.denied,
        "denied_in_shadow": limit.denied_in_shadow,
        "delayed": limit.delays.map_or(0, |delays| delays.requests),
        "delay_ms": limit.delays.and_then(delay),
        "candidate": unnamed.map(candidate),
        "candidate_denied": unnamed.map(|candidate| candidate.denied),
        "candidates": named,
        "ids": limit.ids,
        "ids_denied": limit.ids_denied,
        "ids_are_estimates": limit.ids_are_estimates,
        "first": limit.first.map(rfc3339),
        "last": limit.last.map(rfc3339),
        "worst": worst,
        "most_denied": most_denied(&limit.most_denied, names),
        "load": load,
        "suggestion": suggestion,
        "curve": curve,
    }))
}

fn left_out_by_limit(left: &LimitLeftOut) -> Value {
    json!({ "lacks": left.lacks.to_string(), "lines": left.lines, "file": left.file, "line": left.line })
}

fn candidate(candidate: &CandidateReport) -> Value {
    json!({
        "numbers": candidate.numbers,
        "enforce_for_percent": f64::from(candidate.enforce_for) * 100.0 / f64::from(WHOLE_SHARE),
        "requests": candidate.requests,
        "denied": candidate.denied,
    })
}

/// In milliseconds; `None` if no request is delayed.
fn delay(delays: Delays) -> Option<Value> {
    let [p50, p99, max] = [delays.p50, delays.p99, delays.most].map(|delay| delay.0 / 1_000);
    (delays.requests > 0).then(|| json!({ "p50": p50, "p99": p99, "max": max }))
}

fn found(found: Found) -> Value {
    json!({ "number": found.number, "denied": found.denied, "ids_denied": found.ids_denied })
}

fn difference(difference: &Difference, names: &Names) -> Value {
    let most = most_denied(&difference.most, names);
    json!({ "requests": difference.requests, "ids": difference.ids, "most_denied": most })
}

fn most_denied(ids: &[DeniedId], names: &Names) -> Value {
    ids.iter().map(|id| json!({ "id": names.name(&id.id), "denied": id.denied })).collect()
}

fn slices(slices: &[Slice]) -> Value {
    let admitted: Vec<u64> = slices.iter().map(|slice| slice.admitted).collect();
    let denied: Vec<u64> = slices.iter().map(|slice| slice.denied).collect();
    json!({ "admitted": admitted, "denied": denied })
}

pub(super) fn fields(value: Value) -> Map<String, Value> {
    if let Value::Object(fields) = value { fields } else { Map::new() }
}
