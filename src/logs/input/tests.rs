//! Files as blocks: several, compressed, broken.

use std::fs;
use std::io::Write;

use bzip2::write::BzEncoder;
use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};
use tempfile::TempDir;

use super::*;
use crate::logs::format::MAX_LINE;

const SECOND: &str = "21/Nov/2026:04:00:0";

fn line(second: usize, target: &str) -> String {
    format!("192.0.2.7 - - [{SECOND}{second} +0000] \"GET {target} HTTP/1.1\" 200 5\n")
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// In blocks of 100,000 bytes.
fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    }
}

#[test]
fn a_file_that_is_given_twice_is_an_error() {
    let folder = Folder::new();
    let file = folder.file("a.log", line(1, "/"));
    std::os::unix::fs::symlink(&file, folder.0.path().join("b.log")).unwrap();
    let format = Format::named("common").unwrap();
    for paths in [vec![file.clone(), file], vec![folder.0.path().to_owned()]] {
        let error = Blocks::open(&paths, Some(&format)).err().unwrap().to_string();
        assert!(error.contains("is the same file as"), "{error}");
    }
}

type Read = (Vec<(u64, usize)>, Vec<String>);

/// The number and length of each line, and the errors.
fn read(paths: &[PathBuf]) -> Read {
    let format = Format::named("common").unwrap();
    let (mut found, mut errors) = (Vec::new(), Vec::new());
    for block in Blocks::open(paths, Some(&format)).unwrap() {
        match block {
            Ok(block) => found.extend(block.lines().map(|(number, line)| (number, line.len()))),
            Err(error) => errors.push(error.to_string()),
        }
    }
    (found, errors)
}

#[test]
fn lines_are_whole_and_numbered_however_they_are_stored() {
    let folder = Folder::new();
    let many: String = (0..20_000).map(|number| line(number % 10, &format!("/{}", "x".repeat(number % 97)))).collect();
    // Blank lines keep their numbers, and the last line needs no end.
    let text = format!("\n{many}\r\n{}", line(1, "/last").trim_end());
    let expected: Vec<(u64, usize)> = (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| (number, line.len()))
        .collect();
    let (first, second) = text.split_at(text.len() / 3);
    for (name, bytes) in [
        ("plain", text.clone().into_bytes()),
        ("gzip", gzip(text.as_bytes())),
        ("members", [gzip(first.as_bytes()), gzip(second.as_bytes())].concat()),
        ("bzip2", bzip2(text.as_bytes())),
        ("streams of bzip2", [bzip2(first.as_bytes()), bzip2(second.as_bytes())].concat()),
        ("xz", xz(text.as_bytes())),
        ("streams of xz", [xz(first.as_bytes()), xz(second.as_bytes())].concat()),
        ("zstd", zstd(text.as_bytes())),
        (
            "frames",
            [zstd(first.as_bytes()), b"\x50\x2A\x4D\x18\x03\0\0\0abc".to_vec(), zstd(second.as_bytes())].concat(),
        ),
    ] {
        let (found, errors) = read(&[folder.file(name, bytes)]);
        assert_eq!((found.len(), errors), (expected.len(), vec![]), "{name}");
        assert!(found == expected, "{name}");
    }
}

#[test]
fn a_line_of_any_length_is_one_line() {
    let folder = Folder::new();
    let long = "x".repeat(3 * BLOCK);
    let path = folder.file("log", format!("{}{long}\n{}", line(1, "/a"), line(2, "/b")));
    let (found, errors) = read(&[path]);
    let short = line(1, "/a").len() - 1;
    assert_eq!(found.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((found[0].1, found[2].1, errors), (short, short, vec![]));
    assert!(found[1].1 > MAX_LINE && found[1].1 <= 2 * BLOCK, "{}", found[1].1);
}

#[test]
fn what_was_read_of_a_broken_file_counts_and_the_next_file_follows() {
    let folder = Folder::new();
    let text: String = (0..5_000).map(|number| line(number % 10, &format!("/{}", number * 7919))).collect();
    let after = folder.file("after", line(9, "/"));
    let text = text.as_bytes();
    for (name, bytes, streams) in [
        ("cut.gz", gzip(text), true),
        ("cut.bz2", bzip2(text), true),
        // It has one chunk.
        ("cut.xz", xz(text), false),
        ("cut.zst", zstd(text), false),
    ] {
        let cut = folder.file(name, &bytes[..bytes.len() * 2 / 3]);
        let (found, errors) = read(&[cut, after.clone()]);
        let count = found.len() - 1;
        assert!(count < 5_000 && (count > 0) == streams, "{name}: {count}");
        assert_eq!(found.last(), Some(&(1, line(9, "/").len() - 1)), "{name}");
        let expected = format!("{name}: its compressed data is broken or cut off after {count} whole lines");
        assert!(errors.len() == 1 && errors[0].contains(&expected), "{errors:?}");
    }
}

#[test]
fn the_oldest_file_is_read_first() {
    let folder = Folder::new();
    let paths = [folder.file("new", line(5, "/")), folder.file("old.gz", gzip(line(1, "/").as_bytes()))];
    for (paths, expected) in [(paths.clone(), [1, 0]), ([paths[1].clone(), paths[0].clone()], [0, 1])] {
        let blocks = Blocks::open(&paths, None).unwrap();
        assert!(blocks.files().iter().all(|file| file.format.name() == "common"));
        assert_eq!(blocks.map(|block| block.unwrap().file).collect::<Vec<_>>(), expected);
    }
    let progress = Blocks::open(&paths, None).map(|mut blocks| (blocks.by_ref().count(), blocks.progress().bytes()));
    let sizes: u64 = paths.iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(progress.unwrap(), (2, sizes));
}

#[test]
fn a_file_that_is_no_log_is_refused_with_what_would_be_right() {
    let folder = Folder::new();
    let refused = |path: PathBuf| match Blocks::open(&[path], None) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    };
    let unknown = refused(folder.file("notes", "some\nnotes\n"));
    assert!(unknown.contains("notes: its format is not known; give `--log-format` one of `istio`"), "{unknown}");
    assert!(refused(folder.0.path().join("none")).ends_with("none: no such file"));
    let empty = Folder::new();
    empty.file(".hidden", line(1, "/"));
    assert!(refused(empty.0.path().to_owned()).ends_with("the directory has no access logs"));
    assert!(Blocks::open(&["-".into(), "-".into()], None).is_err());
    // An empty file, such as today's directly after rotation, is a log without lines.
    assert_eq!(read(&[folder.file("empty", "")]), (vec![], vec![]));
    assert!(Blocks::open(&[folder.file("empty", "")], None).is_ok());
}

/// Lines of several files come in the order of time, but for those of a block, whatever the files are called.
#[test]
fn files_are_merged_by_time() {
    let folder = Folder::new();
    let line = |second: usize| {
        format!("192.0.2.7 - - [21/Nov/2026:04:{:02}:{:02} +0000] \"GET / HTTP/1.1\" 200 5\n", second / 60, second % 60)
    };
    let sizes = [3, 7, 11];
    for (file, step) in sizes.into_iter().enumerate() {
        folder.file(&format!("{file}"), (0..3_000 / step).flat_map(|at| vec![line(at * step); 40]).collect::<String>());
    }
    let (mut until, mut read) = (None, 0);
    for block in Blocks::open(&[folder.0.path().to_owned()], None).unwrap() {
        let block = block.unwrap();
        read += block.lines().count();
        let text = block.lines().next().unwrap().1.to_vec();
        let format = Format::detect([&text[..]].into_iter()).unwrap();
        let first = format.parser().parse(&text).unwrap().unwrap().at;
        assert!(until.is_none_or(|until| until <= first), "{until:?} {first:?}");
        until = block.until;
    }
    assert_eq!(read, sizes.iter().map(|step| 3_000 / step * 40).sum::<usize>());
}
