//! The process's use of the machine, under the names that all Prometheus clients use, and its memory limit.
//!
//! The library's own collector counts CPU in whole seconds, which makes steps in a graph; the kernel counts nanoseconds.
//! Without `/proc`, what is read there stays 0.

use std::fs;
use std::path::{Path, PathBuf};

use prometheus::{Counter, IntGauge};
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::families::metrics;

metrics! {
    /// Read when the metrics are rendered.
    pub(super) struct ProcessMetrics {
        cpu_seconds: Counter = float_counter("process_cpu_seconds_total", "CPU time of all threads");
        resident_bytes: IntGauge = gauge("process_resident_memory_bytes", "Resident memory");
        virtual_bytes: IntGauge = gauge("process_virtual_memory_bytes", "Virtual memory");
        memory_limit_bytes: IntGauge = gauge(
            "weir_memory_limit_bytes",
            "Memory that the process may use: the smallest limit of its control groups and the machine; 0 if unknown",
        );
        threads: IntGauge = gauge("process_threads", "Threads");
        open_fds: IntGauge = gauge("process_open_fds", "Open file descriptors");
        max_fds: IntGauge = gauge("process_max_fds", "Maximum number of open file descriptors");
    }
}

impl ProcessMetrics {
    pub(super) fn update(&self) {
        self.cpu_seconds.reset();
        self.cpu_seconds.inc_by(cpu_seconds());
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let set = |gauge: &IntGauge, value: Option<u64>| {
            gauge.set(i64::try_from(value.unwrap_or(0)).unwrap_or(i64::MAX));
        };
        set(&self.resident_bytes, kib(&status, "VmRSS:"));
        set(&self.virtual_bytes, kib(&status, "VmSize:"));
        set(&self.threads, number(&status, "Threads:"));
        set(&self.memory_limit_bytes, memory_limit());
        set(&self.open_fds, open_fds());
        set(&self.max_fds, getrlimit(Resource::Nofile).current);
    }
}

#[expect(clippy::cast_precision_loss, reason = "a double is exact to the microsecond for 285 years")]
fn cpu_seconds() -> f64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// Since Linux 6.2 the directory's size is the number of its entries. Before, they have to be counted, which takes 5 ms for
/// ten thousand connections.
fn open_fds() -> Option<u64> {
    let directory = Path::new("/proc/self/fd");
    match fs::metadata(directory).ok()?.len() {
        // One of them is the open directory itself.
        0 => Some((fs::read_dir(directory).ok()?.count() as u64).saturating_sub(1)),
        count => Some(count),
    }
}

/// Finds the number after a name at the start of a line, as in `/proc/self/status`.
fn number(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Like [`number`], converted from KiB to bytes.
fn kib(text: &str, name: &str) -> Option<u64> {
    number(text, name)?.checked_mul(1024)
}

fn memory_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| kib(&text, "MemTotal:"));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let files = limit_files(&groups).into_iter();
    // Systemd's unit hides `/proc/meminfo` (`ProcSubset=pid`). Without a limit, a group's file is `max`, or in version 1 a
    // number larger than any machine's memory.
    let limits = files.filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok());
    limits.chain(machine).min()
}

/// The memory limit files of the process's control groups, from the innermost to the root. In a container the paths in
/// `/proc/self/cgroup` can be the host's, which do not exist there; the root is the container's own group.
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
        let process = ProcessMetrics::new(&prometheus::Registry::new()).unwrap();
        let file = fs::File::open("/proc/self/status").unwrap();
        process.update();
        let before = (process.cpu_seconds.get(), process.open_fds.get());
        assert!(before.0 > 0.0 && before.1 > 2, "{before:?}");
        let (resident, limit) = (process.resident_bytes.get(), process.memory_limit_bytes.get());
        assert!(resident > 1 << 20 && limit > resident && process.virtual_bytes.get() > resident, "{process:?}");
        assert!(process.threads.get() > 0 && process.max_fds.get() > before.1, "{process:?}");
        drop(file);
        process.update();
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
