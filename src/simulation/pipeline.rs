//! The threads of a simulation: one reads, several parse and match the rules, one decides in order.
//!
//! Blocks are dealt to the parsers in turn and taken from them in the same turn, so they stay in the order of the log. The
//! channels are short, so a slow stage slows the others down instead of filling memory.

use std::borrow::Cow;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::against::Comparing;
use super::clients::{self, Sender};
use super::coverage::Missing;
use super::impact::{AGENT, DeniedSink, Impact, Seen};
use super::order::{BRIEF_WINDOW, Order, WINDOW};
use super::report::{Example, LeftOut, LimitLeftOut, LineCounts, MOST_EXAMPLES, RecordingReport, Report};
use super::requests::{Arrival, Side, arrival};
use super::sides::{BothSides, OneSide};
use super::suggestion::Goal;
use super::tally::Ending;
use crate::engine::algorithms::micros::Micros;
use crate::engine::limit::rules::Rules;
use crate::logs::RecordingEnd;
use crate::logs::input::{Block, Blocks, LogFile, ReadError};
use crate::logs::told::Told;
use crate::message::client_address::TrustedProxies;
use crate::message::lossless;

/// The blocks that wait for a thread.
const WAITING: usize = 2;

pub struct Options<'a> {
    /// Threads that parse, at least 1.
    pub threads: usize,
    /// The most buckets, and the most ids that are counted exactly.
    pub max_keys: usize,
    pub goal: Goal,
    /// Finds out what other numbers would deny.
    pub has_curves: bool,
    /// The most denied ids that a report has, per limit.
    pub top: usize,
    /// The proxies that name clients, as for `weir serve`.
    pub trusted: TrustedProxies,
    /// Lists denied ids: the report has an impact for each limit of the rules.
    pub lists_impact: bool,
    /// Counts the lines that were decided.
    pub lines: &'a AtomicU64,
    /// Once true, no more is read.
    pub stop: &'a AtomicBool,
}

/// The inputs of all parsers.
#[derive(Clone, Copy)]
struct Context<'a> {
    files: &'a [LogFile],
    side: &'a Side,
    other: Option<&'a Side>,
    trusted: &'a TrustedProxies,
    keeps_seen: bool,
}

/// The requests of a block.
#[derive(Default)]
struct Parsed {
    /// The place of the file.
    file: usize,
    until: Option<Micros>,
    arrivals: Vec<Arrival>,
    counts: LineCounts,
    examples: Vec<Example>,
    /// The requests among the arrivals that the server had answered with 429.
    answered_429: u64,
    maybe_proxied: u64,
    sender: Sender,
    new_members: u64,
    new_member: Option<Example>,
    lacking: Vec<Lacking>,
    /// Requests, read or unreadable.
    of_requests: u64,
    /// The last line of a recording.
    ended: Option<RecordingEnd>,
    error: Option<ReadError>,
}

/// Lines of a block that say too little for a limit.
struct Lacking {
    /// The first one.
    line: u64,
    lines: u64,
    is_other: bool,
    limit: u32,
    lacks: Arc<Missing>,
}

/// Simulates `rules` on a log, and `other` rules on the same requests. `denied` takes each request that a limit of `rules` denies.
pub fn run(
    blocks: Blocks,
    rules: Rules,
    other: Option<Rules>,
    options: &Options<'_>,
    mut denied: Option<&mut DeniedSink<'_>>,
) -> Report {
    let (told, files, error_logs) = (blocks.told(), blocks.files().to_vec(), blocks.error_logs().to_vec());
    let logs: Vec<&Told> = files.iter().map(|file| file.format.told()).collect();
    let side = Side::new(rules, &logs);
    let other = other.map(|rules| Side::new(rules, &logs));
    let (side, other, files) = (&side, other.as_ref(), &files);
    let keeps_seen = options.lists_impact || denied.is_some();
    let context = Context { files, side, other, trusted: &options.trusted, keeps_seen };
    let mut decider = Decider::new(side, other, &told, files, options);
    thread::scope(|scope| {
        let mut to_parsers = Vec::new();
        let mut from_parsers = Vec::new();
        for _ in 0..options.threads.max(1) {
            let (to_parser, blocks) = sync_channel(WAITING);
            let (to_decider, parsed) = sync_channel(WAITING);
            to_parsers.push(to_parser);
            from_parsers.push(parsed);
            scope.spawn(move || parse_all(&blocks, &to_decider, &context));
        }
        let dealer = scope.spawn(move || deal(blocks, &to_parsers, options.stop));
        // The blocks end with the first parser that has none in its turn.
        for parser in from_parsers.iter().cycle() {
            let Ok(parsed) = parser.recv() else { break };
            options.lines.fetch_add(parsed.counts.lines, Ordering::Relaxed);
            decider.take(parsed, &mut denied);
        }
        if dealer.join().unwrap_or_else(|panic| resume_unwind(panic)) {
            decider.interrupted.push("stopped by Ctrl-C: the rest of the logs is not read".to_owned());
        }
    });
    Report { error_logs, ..decider.finish(options, &mut denied) }
}

/// Deals the blocks to the parsers. Returns true if it was stopped before the last one.
fn deal(blocks: Blocks, parsers: &[SyncSender<Result<Block, ReadError>>], stop: &AtomicBool) -> bool {
    for (block, parser) in blocks.zip(parsers.iter().cycle()) {
        if stop.load(Ordering::Relaxed) {
            return true;
        }
        // A parser ends early only if the decider has.
        if parser.send(block).is_err() {
            break;
        }
    }
    false
}

fn parse_all(blocks: &Receiver<Result<Block, ReadError>>, decider: &SyncSender<Parsed>, context: &Context<'_>) {
    for block in blocks {
        let parsed = match block {
            Ok(block) => parse(block, context),
            Err(error) => Parsed { error: Some(error), ..Parsed::default() },
        };
        if decider.send(parsed).is_err() {
            return;
        }
    }
}

fn parse(block: Block, context: &Context<'_>) -> Parsed {
    let Context { files, side, other, trusted, keeps_seen } = *context;
    let mut parsed = Parsed { file: block.file, until: block.until, ..Parsed::default() };
    let Some(file) = files.get(block.file) else { return parsed };
    let block = block.unwrapped(&file.wrapping);
    let told = file.format.told();
    let format = block.format.reading(|name| {
        let of_side = |side: &Side| side.reads_header(name);
        clients::is_forwarding(name) || (keeps_seen && name == AGENT) || of_side(side) || other.is_some_and(of_side)
    });
    let mut parser = format.parser();
    for (number, line) in block.lines() {
        parsed.counts.lines += 1;
        let (reason, found) = match parser.parse(line) {
            Ok(Some(entry)) => {
                parsed.of_requests += 1;
                if let Some(name) = entry.new_member {
                    parsed.new_members += 1;
                    parsed.new_member.get_or_insert_with(|| Example {
                        reason: LeftOut::NoRequest,
                        file: file.name.clone(),
                        line: number,
                        found: lossless::text(name).into_owned(),
                    });
                }
                match arrival(&entry, (block.file, told), trusted, side, other) {
                    Ok(mut arrival) => {
                        parsed.take_lacking(number, &mut arrival);
                        arrival.seen = keeps_seen.then(|| Box::new(Seen::of(&entry)));
                        parsed.maybe_proxied += u64::from(clients::may_be_proxied(&entry, told, trusted));
                        parsed.sender.add(clients::sender(&entry, told, trusted));
                        parsed.answered_429 += u64::from(entry.status == Some(429));
                        parsed.arrivals.push(arrival);
                        continue;
                    }
                    Err(reason) => {
                        let found = match (entry.unread_client, entry.client) {
                            (Some(unread), _) => lossless::text(unread),
                            (None, Some(proxy)) => format!("the trusted proxy {proxy}").into(),
                            (None, None) => Cow::default(),
                        };
                        (reason, found)
                    }
                }
            }
            Ok(None) => {
                parsed.ended = format.recording_end(line).or(parsed.ended);
                (LeftOut::NoRequest, Cow::default())
            }
            Err(error) => {
                parsed.of_requests += 1;
                (LeftOut::Unreadable, error.to_string().into())
            }
        };
        parsed.counts.leave_out(reason);
        if parsed.counts.left_out(reason) <= MOST_EXAMPLES as u64 {
            let (file, found) = (file.name.clone(), found.into_owned());
            parsed.examples.push(Example { reason, file, line: number, found });
        }
    }
    parsed
}

impl Parsed {
    /// Takes over the limits that a line says too little for.
    fn take_lacking(&mut self, line: u64, arrival: &mut Arrival) {
        let sides = [(false, Some(&mut *arrival.asked)), (true, arrival.other.as_deref_mut())];
        for (is_other, asked) in sides {
            let left_out = asked.map(|asked| std::mem::take(&mut asked.left_out)).unwrap_or_default();
            for (limit, lacks) in left_out {
                let is_same =
                    |known: &&mut Lacking| (known.is_other, known.limit, &known.lacks) == (is_other, limit, &lacks);
                match self.lacking.iter_mut().find(is_same) {
                    Some(known) => known.lines += 1,
                    None => self.lacking.push(Lacking { line, lines: 1, is_other, limit, lacks }),
                }
            }
        }
    }
}

/// Decides requests in the order of their arrival and counts what the limits do.
struct Decider<'s> {
    order: Order,
    sides: BothSides<'s>,
    counts: LineCounts,
    examples: Vec<Example>,
    answered_429: u64,
    maybe_proxied: u64,
    sender: Sender,
    new_members: u64,
    new_member: Option<Example>,
    /// By the place of the file; `None` for a file that is not a recording.
    recordings: Vec<Option<RecordingReport>>,
    files: &'s [LogFile],
    interrupted: Vec<String>,
    precision: Micros,
    is_arrival: bool,
}

impl<'s> Decider<'s> {
    fn new(side: &'s Side, other: Option<&'s Side>, told: &Told, files: &'s [LogFile], options: &Options<'_>) -> Self {
        let recording = |file: &LogFile| {
            let empty = || RecordingReport { file: file.name.clone(), end: None, lines: 0 };
            file.format.is_recording().then(empty)
        };
        let there = other.map(|other| (OneSide::new(other, options), Comparing::new(side, other, options.max_keys)));
        let here = OneSide::new(side, options);
        let impact = options.lists_impact.then(|| Impact::new(side, options.max_keys));
        // Lines that tell only the ends of responses are written in their order.
        let window = if told.took || told.is_arrival { WINDOW } else { BRIEF_WINDOW };
        Self {
            order: Order::new(window),
            sides: BothSides { here, impact, there, span: None, requests: 0, late: 0 },
            counts: LineCounts::default(),
            examples: Vec::new(),
            answered_429: 0,
            maybe_proxied: 0,
            sender: Sender::default(),
            new_members: 0,
            new_member: None,
            recordings: files.iter().map(recording).collect(),
            files,
            interrupted: Vec::new(),
            precision: told.precision,
            is_arrival: told.is_arrival,
        }
    }

    fn take(&mut self, parsed: Parsed, denied: &mut Option<&mut DeniedSink<'_>>) {
        self.counts.add(&parsed.counts);
        for example in parsed.examples {
            if self.examples.iter().filter(|known| known.reason == example.reason).count() < MOST_EXAMPLES {
                self.examples.push(example);
            }
        }
        self.answered_429 += parsed.answered_429;
        self.maybe_proxied += parsed.maybe_proxied;
        self.sender.add(parsed.sender);
        self.new_members += parsed.new_members;
        self.new_member = self.new_member.take().or(parsed.new_member);
        if let Some(Some(recording)) = self.recordings.get_mut(parsed.file) {
            recording.end = parsed.ended.or(recording.end);
            recording.lines += parsed.of_requests;
        }
        let file = self.files.get(parsed.file).map_or("", |file| &file.name);
        for Lacking { line, lines, is_other, limit, lacks } in parsed.lacking {
            let left = LimitLeftOut { lacks: (*lacks).clone(), lines, file: file.to_owned(), line };
            self.sides.leave_out(is_other, limit, left);
        }
        self.interrupted.extend(parsed.error.map(|error| error.to_string()));
        for arrival in parsed.arrivals {
            self.order.add(arrival, &mut |arrival| self.sides.decide(arrival, denied));
        }
        self.order.wait_for(parsed.until);
    }

    fn finish(mut self, options: &Options<'_>, denied: &mut Option<&mut DeniedSink<'_>>) -> Report {
        self.order.finish(&mut |arrival| self.sides.decide(arrival, denied));
        let BothSides { here, impact, there, span, requests, late, .. } = self.sides;
        let (overflowed, undecided) = (here.replay.overflowed(), here.replay.undecided);
        let (settled_early, needs_client) = (here.replay.settled_early(), here.side.needs_client);
        let spans = span.map_or(Micros(0), |(first, last)| Micros(last.0 - first.0));
        let Options { goal, has_curves, top: most, threads, .. } = *options;
        let ending = Ending { goal, has_curves, most, threads, spans, requests };
        let report = |one: OneSide<'_>| one.tally.into_report(one.side, &ending);
        let (other, comparison) = match there {
            None => (None, None),
            Some((there, comparing)) => (Some(report(there)), Some(comparing.into_comparison(options.top))),
        };
        let mut side = report(here);
        let impacts = impact.into_iter().flat_map(Impact::into_report);
        for (limit, impact) in side.limits.iter_mut().zip(impacts) {
            limit.impact = Some(impact);
        }
        Report {
            lines: self.counts,
            examples: self.examples,
            interrupted: self.interrupted,
            error_logs: Vec::new(),
            span,
            requests,
            answered_429: self.answered_429,
            maybe_proxied: self.maybe_proxied,
            has_one_private_client: needs_client && self.sender.is_one_private(),
            new_members: self.new_members,
            new_member: self.new_member,
            recordings: self.recordings.into_iter().flatten().collect(),
            late,
            overflowed,
            settled_early,
            undecided,
            precision: self.precision,
            is_arrival: self.is_arrival,
            side,
            other,
            comparison,
        }
    }
}
