//! The CSV files of `weir simulate`: each denied request, each denied id, and the customers behind ids.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use csv::{Reader, ReaderBuilder, StringRecord, Writer, WriterBuilder};

use super::impact::{Kind, denied_by, kinds, share};
use super::names::Names;
use crate::commands::exit::Failure;
use crate::commands::print::joined;
use crate::engine::text::csv::cell;
use crate::engine::text::instant::rfc3339;
use crate::simulation::impact::{DeniedRequest, IdImpact, LimitImpact, Pace};
use crate::simulation::report::Report;

/// The values of denied requests that a cell has.
const MOST_VALUES: usize = 5;

#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    /// Write each request that a limit denies to this CSV file
    #[arg(long, value_name = "FILE")]
    denied: Option<PathBuf>,

    /// Write each id that a limit denies to this CSV file, and show facts about the most denied ids in the report
    #[arg(long, value_name = "FILE")]
    impact: Option<PathBuf>,

    /// A CSV file with a column `id`, whose other columns, such as `name`, are added to the ids that it has; needs --show-ids
    #[arg(long, value_name = "FILE", requires = "show_ids")]
    customers: Option<PathBuf>,
}

/// The open files.
pub(super) struct Lists {
    denied: Option<CsvFile>,
    impact: Option<CsvFile>,
    customers: Option<CustomersFile>,
}

struct CsvFile {
    path: PathBuf,
    writer: Writer<File>,
    /// Written first.
    columns: Vec<String>,
    is_begun: bool,
    /// The first error. Nothing is written after it.
    error: Option<csv::Error>,
}

struct CustomersFile {
    path: PathBuf,
    reader: Reader<File>,
    /// The place of the column `id`.
    id: usize,
}

/// The customers of denied ids, from `--customers`.
#[derive(Default)]
pub(super) struct Customers {
    /// The names of all columns but `id`.
    columns: Vec<String>,
    /// The values of these columns, by id.
    rows: HashMap<String, Vec<String>>,
}

impl ListArgs {
    /// Returns true if a list or the report needs the facts about denied ids.
    pub(super) const fn lists_impact(&self) -> bool {
        self.impact.is_some() || self.customers.is_some()
    }

    /// Opens the files. None of `read`, which are the files and directories that the simulation reads, is overwritten.
    pub(super) fn open(&self, read: Vec<PathBuf>) -> Result<Lists, Failure> {
        let read: Vec<PathBuf> = read.into_iter().chain(self.customers.clone()).collect();
        let customers = self.customers.as_deref().map(CustomersFile::open).transpose()?;
        let header = "time,limit,denied_by,id,method,path,status,agent";
        let denied = self.denied.as_ref().map(|path| CsvFile::open("--denied", path, &read, header)).transpose()?;
        if let (Some(denied), Some(impact)) = (&self.denied, &self.impact)
            && identity(denied).is_some_and(|denied| identity(impact) == Some(denied))
        {
            let name = impact.display();
            return Err(Failure::usage(format!("--impact {name}: the file is also that of --denied")));
        }
        let impact = self.impact.as_ref().map(|path| CsvFile::open("--impact", path, &read, IMPACT)).transpose()?;
        Ok(Lists { denied, impact, customers })
    }
}

/// The columns of `--impact` before those of `--customers`.
const IMPACT: &str = "limit,denied_by,id,requests,denied,share,first,last,peak,peak_at,agents,share_401,share_404,gap_seconds,\
                      gap_variation,paths,methods,statuses,top_agents";

/// The device and inode of a file, which all of its names share; `None` if it does not exist.
fn identity(path: &Path) -> Option<(u64, u64)> {
    path.metadata().ok().map(|found| (found.dev(), found.ino()))
}

impl Lists {
    /// Writes a denied request; `None` if nobody asked for that.
    pub(super) fn sink<'a>(&'a mut self, names: &'a Names) -> Option<impl FnMut(&DeniedRequest<'_>) + 'a> {
        let file = self.denied.as_mut()?;
        Some(move |request: &DeniedRequest<'_>| {
            let seen = request.seen;
            file.write(&[
                rfc3339(request.at),
                request.limit.to_owned(),
                denied_by(&request.by).into_owned(),
                request.id.as_ref().map_or_else(|| "(none)".to_owned(), |id| cell(&names.name(&id.join(":")))),
                cell(seen.method.as_deref().unwrap_or_default()),
                cell(&names.part(seen.path.as_deref().unwrap_or_default())),
                seen.status.map(|status| status.to_string()).unwrap_or_default(),
                cell(&names.part(seen.agent.as_deref().unwrap_or_default())),
            ]);
        })
    }

    /// Reads the customers of denied ids, writes the ids, and closes the files.
    pub(super) fn finish(self, report: &Report, names: &Names, err: &mut dyn Write) -> Result<Customers, Failure> {
        let sum = |of: fn(&LimitImpact) -> u64| impacts(report).map(|(_, impact)| of(impact)).sum::<u64>();
        let (unlisted, without_id) = (sum(|impact| impact.unlisted), sum(|impact| impact.without_id));
        if unlisted > 0 {
            writeln!(
                err,
                "note: --impact lacks the ids of {unlisted} denied requests, because there are too many ids"
            )?;
        }
        if without_id > 0 {
            writeln!(err, "note: {without_id} denied requests have no id, so --impact lists none for them")?;
        }
        let customers = self.customers.map(|file| file.read(report, err)).transpose()?.unwrap_or_default();
        if let Some(mut file) = self.impact {
            let columns = customers.columns.iter().map(|column| format!("customer_{column}"));
            file.columns.extend(columns);
            for (limit, impact) in impacts(report) {
                for id in &impact.ids {
                    file.write(&row(limit, id, names, &customers));
                }
            }
            file.finish()?;
        }
        self.denied.map(CsvFile::finish).transpose()?;
        Ok(customers)
    }
}

fn impacts(report: &Report) -> impl Iterator<Item = (&str, &LimitImpact)> {
    report.side.limits.iter().filter_map(|limit| Some((limit.name.as_str(), limit.impact.as_ref()?)))
}

impl CsvFile {
    /// Opens a file, which stays as it is until something is written.
    fn open(flag: &str, path: &Path, read: &[PathBuf], columns: &str) -> Result<Self, Failure> {
        let name = path.display();
        let known = identity(path);
        // A new file below a directory of logs would be read as one by the next run.
        let parent = || path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
        let full = path.canonicalize().or_else(|_| parent().canonicalize()).ok();
        let is_read = read.iter().any(|read| {
            let is_within = || Some(full.as_ref()?.starts_with(read.canonicalize().ok()?));
            (known.is_some() && identity(read) == known) || is_within() == Some(true)
        });
        if is_read {
            return Err(Failure::usage(format!(
                "{flag} {name}: the file is read, or lies in a directory of logs; name another"
            )));
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| Failure::bad_input(format!("cannot write {name}: {error}")))?;
        let writer = WriterBuilder::new().buffer_capacity(1 << 16).flexible(true).from_writer(file);
        Ok(Self {
            path: path.to_owned(),
            writer,
            columns: columns.split(',').map(str::to_owned).collect(),
            is_begun: false,
            error: None,
        })
    }

    fn write(&mut self, cells: &[String]) {
        if !std::mem::replace(&mut self.is_begun, true) {
            // Devices and pipes have no length.
            let _ = self.writer.get_ref().set_len(0);
            self.error = self.writer.write_record(&self.columns).err();
        }
        if self.error.is_none() && !cells.is_empty() {
            self.error = self.writer.write_record(cells).err();
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.write(&[]);
        let flushed = self.writer.flush().map_err(csv::Error::from);
        let error = self.error.or(flushed.err());
        error.map_or(Ok(()), |error| Err(Failure::bad_input(format!("cannot write {}: {error}", self.path.display()))))
    }
}

impl CustomersFile {
    fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: String| Failure::bad_input(format!("--customers {}: {error}", path.display()));
        let mut reader = ReaderBuilder::new().from_path(path).map_err(|error| failed(error.to_string()))?;
        let header = reader.headers().map_err(|error| failed(error.to_string()))?;
        let id = header.iter().position(|name| name.trim_start_matches('\u{feff}') == "id");
        let found = header.iter().collect::<Vec<_>>().join("`, `");
        let id = id.ok_or_else(|| failed(format!("expected a column `id` in the first line, found `{found}`")))?;
        Ok(Self { path: path.to_owned(), reader, id })
    }

    fn read(mut self, report: &Report, err: &mut dyn Write) -> Result<Customers, Failure> {
        let ids: Vec<&IdImpact> = impacts(report).flat_map(|(_, impact)| &impact.ids).collect();
        let wanted: HashSet<String> = ids.iter().flat_map(|id| keys(&id.id)).collect();
        let name = self.path.display();
        let failed = |error: csv::Error| Failure::bad_input(format!("--customers {name}: {error}"));
        let others = |record: &StringRecord| -> Vec<String> {
            let others = record.iter().enumerate().filter(|(place, _)| *place != self.id);
            others.map(|(_, value)| value.to_owned()).collect()
        };
        let columns = others(self.reader.headers().map_err(failed)?);
        let (mut rows, mut again) = (HashMap::new(), 0_u64);
        for record in self.reader.records() {
            let record = record.map_err(failed)?;
            let Some(id) = record.get(self.id).filter(|id| wanted.contains(*id)) else { continue };
            if rows.contains_key(id) {
                again += 1;
            } else {
                rows.insert(id.to_owned(), others(&record));
            }
        }
        if again > 0 {
            writeln!(err, "note: {name}: {again} rows repeat an id; its first row counts")?;
        }
        let customers = Customers { columns, rows };
        let known = ids.iter().filter(|id| customers.row(&id.id).is_some()).count();
        writeln!(err, "note: {name} has {known} of the {} denied ids", ids.len())?;
        Ok(customers)
    }
}

impl Customers {
    /// The row of an id: of the whole id, or else of its first part that has one.
    fn row(&self, id: &[String]) -> Option<&Vec<String>> {
        keys(id).find_map(|key| self.rows.get(&key))
    }

    /// The customer's name, from the column `name`.
    pub(super) fn name(&self, id: &[String]) -> Option<&str> {
        let place = self.columns.iter().position(|column| column == "name")?;
        self.row(id)?.get(place).map(String::as_str)
    }
}

/// The texts that may name a customer: the whole id, or one of its parts.
fn keys(id: &[String]) -> impl Iterator<Item = String> {
    let parts = if id.len() > 1 { id } else { &[] };
    std::iter::once(id.join(":")).chain(parts.iter().cloned())
}

fn row(limit: &str, id: &IdImpact, names: &Names, customers: &Customers) -> Vec<String> {
    let gap = |of: fn(&Pace) -> f64| id.pace.as_ref().map(|pace| format!("{:.3}", of(pace))).unwrap_or_default();
    let mut cells = vec![
        limit.to_owned(),
        denied_by(&id.by).into_owned(),
        cell(&names.name(&id.id.join(":"))),
        id.requests.to_string(),
        id.denied.to_string(),
        share(id.denied, id.requests),
        rfc3339(id.first),
        rfc3339(id.last),
        id.peak.to_string(),
        rfc3339(id.peak_at),
        id.agents.to_string(),
        share(id.unauthorized, id.requests),
        share(id.not_found, id.requests),
        gap(|pace| pace.mean),
        gap(|pace| pace.variation),
    ];
    let found = &id.breakdown;
    cells.extend(kinds(found).map(|kind| values(&kind, names)));
    let empty = || vec![String::new(); customers.columns.len()];
    cells.extend(customers.row(&id.id).cloned().unwrap_or_else(empty));
    cells
}

/// `120 /search; 3 /login`
fn values(kind: &Kind<'_>, names: &Names) -> String {
    let top = kind.top(MOST_VALUES, names).into_iter();
    joined(top.map(|(value, denied)| format!("{denied} {value}")), "; ")
}
