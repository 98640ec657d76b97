//! What the process takes of the machine, under the names that all Prometheus clients use, and how much memory it may.
//!
//! The library's own collector counts CPU in whole seconds, which makes steps of a busy minute; here the kernel is asked
//! for nanoseconds. Where there is no `/proc`, what would be read there stays 0.

use std::fs;
use std::path::{Path, PathBuf};

use prometheus::{Counter, IntGauge, Registry};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::register::{gauge, register};

/// What is read when somebody looks.
#[derive(Debug)]
pub(super) struct Process {
    cpu_seconds: Counter,
    resident_bytes: IntGauge,
    virtual_bytes: IntGauge,
    memory_limit_bytes: IntGauge,
    threads: IntGauge,
    open_fds: IntGauge,
    max_fds: IntGauge,
}

impl Process {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let cpu_seconds = Counter::new("process_cpu_seconds_total", "Time that all threads have spent on a CPU")?;
        Ok(Self {
            cpu_seconds: register(registry, cpu_seconds)?,
            resident_bytes: gauge(registry, "process_resident_memory_bytes", "Memory in use")?,
            virtual_bytes: gauge(registry, "process_virtual_memory_bytes", "Addresses in use")?,
            memory_limit_bytes: gauge(
                registry,
                "weir_memory_limit_bytes",
                "Memory that the process may use: the least that its control groups and the machine allow; 0 if unknown",
            )?,
            threads: gauge(registry, "process_threads", "Threads")?,
            open_fds: gauge(registry, "process_open_fds", "Open file descriptors")?,
            max_fds: gauge(registry, "process_max_fds", "File descriptors that may be open")?,
        })
    }

    /// Brings the metrics up to date.
    pub(super) fn look(&self) {
        self.cpu_seconds.reset();
        self.cpu_seconds.inc_by(cpu_seconds());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let set = |gauge: &IntGauge, value: Option<u64>| gauge.set(as_gauge(value.unwrap_or(0)));
        set(&self.resident_bytes, kib(&status, "VmRSS:"));
        set(&self.virtual_bytes, kib(&status, "VmSize:"));
        set(&self.threads, number(&status, "Threads:"));
        set(&self.memory_limit_bytes, memory_limit());
        set(&self.open_fds, open_fds());
        set(&self.max_fds, getrlimit(Resource::Nofile).current);
    }
}

fn as_gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "a float tells 285 years to the microsecond")]
fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// Since Linux 6.2 the directory's size is the number of its entries; before, they have to be counted, which takes 5 ms
/// of ten thousand connections.
fn open_fds() -> Option<u64> {
    let directory = Path::new("/proc/self/fd");
    match fs::metadata(directory).ok()?.len() {
        // The one that the directory is read by is no other's.
        0 => Some((fs::read_dir(directory).ok()?.count() as u64).saturating_sub(1)),
        count => Some(count),
    }
}

/// The number behind a name at the beginning of a line, as in `/proc/self/status`.
fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The same in KiB, as bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    number(text, name)?.checked_mul(1024)
}

fn memory_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib(&text, "MemTotal:"));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files = limit_files(&groups).into_iter();
    // The unit of systemd hides the machine's (`ProcSubset=pid`). A group without a limit says `max`, or by the older interface a number that no machine has.
    let limits = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
    limits.chain(machine).min()
}

/// The files that say how much memory the process' control groups may use, from the innermost to the root. In a container
/// the paths in `/proc/self/cgroup` can be the host's and not there, while the root is the container's own group.
fn limit_files(groups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            _ if controllers.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        files.extend(path.ancestors().map(|group| Path::new(root).join(group).join(file)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_files(groups: &str, expected: &[&str]) {
        let files = limit_files(groups);
        assert_eq!(files, expected.iter().map(PathBuf::from).collect::<Vec<_>>());
    }

    #[test]
    fn every_group_above_the_process_limits_its_memory() {
        check_files("0::/\n", &["/sys/fs/cgroup/memory.max"]);
        check_files(
            "0::/kubepods/pod1\n",
            &[
                "/sys/fs/cgroup/kubepods/pod1/memory.max",
                "/sys/fs/cgroup/kubepods/memory.max",
                "/sys/fs/cgroup/memory.max",
            ],
        );
        check_files(
            "5:cpu:/a\n4:hugetlb,memory:/a\nnonsense\n",
            &["/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"],
        );
        check_files("", &[]);
    }

    #[test]
    fn a_process_uses_what_it_uses() {
        let process = Process::new(&Registry::new()).unwrap();
        let file = fs::File::open("/proc/self/status").unwrap();
        process.look();
        let before = (process.cpu_seconds.get(), process.open_fds.get());
        assert!(before.0 > 0.0 && before.1 > 2, "{before:?}");
        let (resident, limit) = (process.resident_bytes.get(), process.memory_limit_bytes.get());
        assert!(resident > 1 << 20 && limit > resident && process.virtual_bytes.get() > resident, "{process:?}");
        assert!(process.threads.get() > 0 && process.max_fds.get() > before.1, "{process:?}");
        drop(file);
        process.look();
        assert!(process.cpu_seconds.get() >= before.0);
    }

    #[test]
    fn numbers_are_found_by_their_name() {
        let status = "Name:\tweir\nVmSize:\t  2048 kB\nVmRSS:\t    12 kB\nThreads:\t5\n";
        assert_eq!((kib(status, "VmRSS:"), number(status, "Threads:")), (Some(12 << 10), Some(5)));
        assert_eq!(number(status, "Name:"), None);
        assert_eq!(number(status, "Absent:"), None);
    }
}
