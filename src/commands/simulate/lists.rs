//! The CSV files of `weir simulate`: each denied request, each denied id, and the customers behind ids.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use csv::{Reader, ReaderBuilder, StringRecord, Writer, WriterBuilder};

use super::impact::{denied_by, share};
use super::json::instant;
use super::names::Names;
use crate::commands::exit::Failure;
use crate::simulation::impact::{DeniedRequest, IdImpact, LimitImpact, Pace, Values};
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
    /// The first error. Nothing is written after it.
    error: Option<csv::Error>,
}

struct CustomersFile {
    path: PathBuf,
    reader: Reader<File>,
    /// The place of the column `id`.
    id: usize,
}

/// What `--customers` says of the denied ids.
#[derive(Default)]
pub(super) struct Customers {
    /// The names of all columns but `id`.
    columns: Vec<String>,
    /// The values of these columns, by id.
    rows: HashMap<String, Vec<String>>,
}

impl ListArgs {
    /// Whether the report is to have what the simulation knows of denied ids.
    pub(super) const fn lists_impact(&self) -> bool {
        self.impact.is_some() || self.customers.is_some()
    }

    /// Opens the files. None of `read`, which are the files and directories that the simulation reads, is overwritten.
    pub(super) fn open(&self, read: Vec<PathBuf>) -> Result<Lists, Failure> {
        let read = read.into_iter().chain(self.customers.clone());
        let read: Vec<PathBuf> = read.filter_map(|path| path.canonicalize().ok()).collect();
        let is_read =
            |path: &Path| path.canonicalize().is_ok_and(|path| read.iter().any(|read| path.starts_with(read)));
        let create = |flag: &str, path: &Option<PathBuf>, other: &Option<PathBuf>| {
            let Some(path) = path else { return Ok(None) };
            let name = path.display();
            if is_read(path) {
                return Err(Failure::usage(format!("{flag} {name}: the file is read; name a new one")));
            }
            if Some(path) == other.as_ref() {
                return Err(Failure::usage(format!("{flag} {name}: the file is also that of --denied")));
            }
            let file =
                File::create(path).map_err(|error| Failure::bad_input(format!("cannot write {name}: {error}")))?;
            let writer = WriterBuilder::new().buffer_capacity(1 << 16).flexible(true).from_writer(file);
            Ok(Some(CsvFile { path: path.clone(), writer, error: None }))
        };
        let customers = self.customers.as_deref().map(CustomersFile::open).transpose()?;
        let mut denied = create("--denied", &self.denied, &None)?;
        if let Some(file) = &mut denied {
            file.write(&["time", "limit", "denied_by", "id", "method", "path", "status", "agent"].map(str::to_owned));
        }
        Ok(Lists { denied, impact: create("--impact", &self.impact, &self.denied)?, customers })
    }
}

impl Lists {
    /// Writes a denied request; `None` if nobody asked for that.
    pub(super) fn sink<'a>(&'a mut self, names: &'a Names) -> Option<impl FnMut(&DeniedRequest<'_>) + 'a> {
        let file = self.denied.as_mut()?;
        Some(move |request: &DeniedRequest<'_>| {
            let seen = request.seen;
            file.write(&[
                instant(request.at),
                request.limit.to_owned(),
                denied_by(request.by).to_owned(),
                cell(&names.name(&request.id.join(":"))),
                cell(seen.method.as_deref().unwrap_or_default()),
                cell(seen.path.as_deref().unwrap_or_default()),
                seen.status.map(|status| status.to_string()).unwrap_or_default(),
                cell(seen.agent.as_deref().unwrap_or_default()),
            ]);
        })
    }

    /// Reads the customers of denied ids, writes the ids, and closes the files.
    pub(super) fn finish(self, report: &Report, names: &Names, err: &mut dyn Write) -> Result<Customers, Failure> {
        let unlisted: u64 = impacts(report).map(|(_, impact)| impact.unlisted).sum();
        if unlisted > 0 {
            writeln!(
                err,
                "note: {unlisted} denied requests are of ids that are not listed, because there are too many"
            )?;
        }
        let customers = self.customers.map(|file| file.read(report, err)).transpose()?.unwrap_or_default();
        if let Some(mut file) = self.impact {
            file.write(&header(&customers));
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
    fn write(&mut self, cells: &[String]) {
        if self.error.is_none() {
            self.error = self.writer.write_record(cells).err();
        }
    }

    fn finish(mut self) -> Result<(), Failure> {
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

/// What a customer may be named by: the whole id, or one of its parts.
fn keys(id: &[String]) -> impl Iterator<Item = String> {
    let parts = if id.len() > 1 { id } else { &[] };
    std::iter::once(id.join(":")).chain(parts.iter().cloned())
}

fn header(customers: &Customers) -> Vec<String> {
    let own = "limit,denied_by,id,requests,denied,share,first,last,peak,peak_at,agents,share_401,share_404,gap_seconds,\
               gap_variation,paths,methods,statuses,top_agents";
    let of_customers = customers.columns.iter().map(|column| format!("customer_{column}"));
    own.split(',').map(str::to_owned).chain(of_customers).collect()
}

fn row(limit: &str, id: &IdImpact, names: &Names, customers: &Customers) -> Vec<String> {
    let gap = |of: fn(&Pace) -> f64| id.pace.as_ref().map(|pace| format!("{:.3}", of(pace))).unwrap_or_default();
    let mut cells = vec![
        limit.to_owned(),
        denied_by(id.by).to_owned(),
        cell(&names.name(&id.id.join(":"))),
        id.requests.to_string(),
        id.denied.to_string(),
        share(id.denied, id.requests),
        instant(id.first),
        instant(id.last),
        id.peak.to_string(),
        instant(id.peak_at),
        id.agents.to_string(),
        share(id.unauthorized, id.requests),
        share(id.not_found, id.requests),
        gap(|pace| pace.mean),
        gap(|pace| pace.variation),
    ];
    let found = &id.breakdown;
    cells.extend([&found.paths, &found.methods, &found.statuses, &found.agents].map(values));
    let empty = || vec![String::new(); customers.columns.len()];
    cells.extend(customers.row(&id.id).cloned().unwrap_or_else(empty));
    cells
}

/// `120 /search; 3 /login`
fn values(values: &Values) -> String {
    let texts = values.top(MOST_VALUES).into_iter().map(|(value, denied)| format!("{denied} {value}"));
    texts.collect::<Vec<_>>().join("; ")
}

/// Text that a client has chosen. A spreadsheet would calculate what begins with one of these characters.
fn cell(text: &str) -> String {
    let quote = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    format!("{quote}{text}")
}
