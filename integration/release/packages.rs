//! The archive, the packages and the bill of materials of a release. Packages are unpacked, and their program is run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::binary;
use crate::support::checkout::Checkout;
use crate::support::process::succeed;
use crate::support::programs::{client, installed, repository};

const KINDS: [&str; 3] = ["archive", "deb", "rpm"];
const SETTINGS: [&str; 2] = ["/etc/weir/limits.yaml", "/etc/weir/weir.yaml"];

/// The files below a directory, by their paths in it.
fn files(directory: &Path) -> BTreeSet<String> {
    let listed = succeed(Command::new("find").args([".", "-type", "f"]).current_dir(directory));
    listed.lines().map(|path| path.trim_start_matches("./").to_owned()).collect()
}

/// A directory like that of `integration/image/build.sh`, with some program as `weir`. Packages are made of it.
struct Image(TempDir);

impl Image {
    fn of(program: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (source, path) in [
            (program, "image/usr/bin/weir"),
            (Path::new("LICENSE"), "image/usr/share/doc/weir/LICENSE"),
            (Path::new("LICENSE"), "image/usr/share/doc/weir/THIRD-PARTY-LICENSES.txt"),
            (Path::new("limits.yaml"), "image/etc/weir/limits.yaml"),
        ] {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy(repository().join(source), path).unwrap();
        }
        // Packages are compressed only lightly here.
        fs::write(directory.path().join(".rpmmacros"), "%_binary_payload w1.gzdio\n").unwrap();
        Self(directory)
    }

    /// With a small program, which is soon compressed.
    fn small() -> Self {
        Self::of(Path::new("/bin/true"))
    }

    /// Makes a package in the directory `out`.
    #[track_caller]
    fn package(&self, script: &mut Command, kind: &str, out: &str) -> PathBuf {
        let (root, out) = (self.0.path(), self.0.path().join(out));
        script.arg(kind).arg(root.join("image")).arg(binary::PATH).arg(&out);
        script.envs([("DPKG_DEB_COMPRESSOR_TYPE", "gzip"), ("DPKG_DEB_COMPRESSOR_LEVEL", "1")]);
        succeed(script.env("HOME", root).env("TMPDIR", root));
        let end = if kind == "archive" { "tar.gz" } else { kind };
        let mut made = fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
        made.find(|path| path.to_str().unwrap().ends_with(end))
            .unwrap_or_else(|| panic!("no {kind} in {}", out.display()))
    }

    #[track_caller]
    fn made(&self, kind: &str, out: &str) -> PathBuf {
        self.package(&mut Command::new(repository().join("integration/release/packages.sh")), kind, out)
    }

    /// Makes and unpacks a package.
    #[track_caller]
    fn unpacked(&self, kind: &str) -> PathBuf {
        let (package, place) = (self.made(kind, "packages"), self.0.path().join("unpacked").join(kind));
        fs::create_dir_all(&place).unwrap();
        let unpack = match kind {
            "archive" => "tar -xzf \"$1\" -C \"$2\" --strip-components=1",
            "deb" => "dpkg-deb --extract \"$1\" \"$2\"",
            _ => "rpm2archive --nocompression - <\"$1\" | tar -x -C \"$2\"",
        };
        succeed(Command::new("bash").args(["-euo", "pipefail", "-c", unpack, "unpack"]).arg(package).arg(&place));
        place
    }
}

#[test]
fn the_same_files_make_the_same_packages() {
    let image = Image::small();
    for kind in KINDS {
        let package = |out: &str| fs::read(image.made(kind, out)).unwrap();
        assert!(package("first") == package("second"), "two packages of the same files differ: {kind}");
    }
}

#[test]
fn each_package_has_everything_and_its_program_runs() {
    let stripped = tempfile::NamedTempFile::new().unwrap();
    succeed(Command::new("strip").arg("-o").arg(stripped.path()).arg(binary::PATH));
    let image = Image::of(stripped.path());
    for (kind, program, limits) in [
        ("archive", "weir", "limits.yaml"),
        ("deb", "usr/bin/weir", "etc/weir/limits.yaml"),
        ("rpm", "usr/bin/weir", "etc/weir/limits.yaml"),
    ] {
        let root = image.unpacked(kind);
        let run = |arguments: &[&str]| succeed(Command::new(root.join(program)).args(arguments).current_dir(&root));
        assert!(run(&["--version"]).contains(env!("CARGO_PKG_VERSION")), "{kind}");
        assert!(run(&["check", limits]).contains(": ok, "), "{kind}");
        let found = files(&root);
        let has = |end: &str| found.iter().any(|path| path.ends_with(end));
        let (manual, fish) =
            if kind == "archive" { ("man/weir.1", "weir.fish") } else { ("man1/weir.1.gz", "weir.fish") };
        for expected in
            [manual, fish, "_weir", "weir.yaml", "weir.service", "weir.socket", "systemd.md", "CHANGELOG.md"]
        {
            assert!(has(expected), "{kind}: {expected} is missing in {found:?}");
        }
        assert!((has("LICENSE") || has("doc/weir/copyright")) && has("THIRD-PARTY-LICENSES.txt"), "{kind}: {found:?}");
        if kind != "archive" {
            let manual = Command::new("zcat").arg(root.join("usr/share/man/man1/weir.1.gz")).output().unwrap().stdout;
            assert!(String::from_utf8_lossy(&manual).contains(env!("CARGO_PKG_VERSION")));
            assert!(has("usr/share/bash-completion/completions/weir"), "{found:?}");
        }
    }
    // Both have the same, apart from where Debian and Fedora look for it.
    let there = |kind: &str| {
        let moved = |path: &String| !["/zsh/", "/doc/", "/licenses/"].iter().any(|part| path.contains(part));
        files(&image.0.path().join("unpacked").join(kind)).into_iter().filter(moved).collect::<Vec<_>>()
    };
    assert_eq!(there("deb"), there("rpm"));
}

/// An upgrade keeps what an operator has changed.
#[test]
fn the_packages_keep_changed_settings() {
    let image = Image::small();
    let deb = image.made("deb", "packages");
    let listed = installed("dpkg-deb", &["--info", deb.to_str().unwrap(), "conffiles"]);
    assert_eq!(listed.lines().collect::<Vec<_>>(), SETTINGS);
    let rpm = image.made("rpm", "packages");
    let query = ["-qp", "--queryformat", "[%{FILENAMES} %{FILEFLAGS:fflags}\n]", rpm.to_str().unwrap()];
    let listed = installed("rpm", &query);
    let kept: Vec<_> = listed.lines().filter_map(|line| line.strip_suffix(" cn")).collect();
    assert_eq!(kept, SETTINGS);
}

/// The calls of systemctl in a package's script, which is run on a machine with systemd.
fn calls(script: &str, arguments: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    let log = place("log");
    fs::write(&log, "").unwrap();
    fs::write(place("script"), script.replace("/run/systemd/system", "/")).unwrap();
    let mut run = Command::new("sh");
    let systemctl = "systemctl() { echo \"$*\" >>\"$LOG\"; }; . \"$SCRIPT\"";
    run.args(["-euc", systemctl, "sh"]).args(arguments).env("LOG", &log).env("SCRIPT", place("script"));
    succeed(&mut run);
    fs::read_to_string(log).unwrap().lines().map(str::to_owned).collect()
}

/// The first installation starts nothing, an upgrade replaces the process that runs, and a removal stops it.
#[test]
fn the_packages_tell_systemd_what_has_changed() {
    let image = Image::small();
    let deb = image.made("deb", "packages");
    let of_deb = |name: &str| installed("dpkg-deb", &["--info", deb.to_str().unwrap(), name]);
    let rpm = image.made("rpm", "packages");
    let of_rpm = |tag: &str| installed("rpm", &["-qp", "--queryformat", &format!("%{{{tag}}}"), rpm.to_str().unwrap()]);
    let (reload, restart, disable) =
        ("daemon-reload", "try-restart weir.service", "disable --now weir.socket weir.service");
    for (script, arguments, expected) in [
        (of_deb("postinst"), &["configure", ""][..], &[reload][..]),
        (of_deb("postinst"), &["configure", "0.0.1-1"], &[reload, restart]),
        (of_deb("prerm"), &["upgrade", "99.0.0-1"], &[]),
        (of_deb("prerm"), &["remove"], &[disable]),
        (of_deb("postrm"), &["remove"], &[reload]),
        (of_rpm("POSTIN"), &["1"], &[reload]),
        (of_rpm("PREUN"), &["1"], &[]),
        (of_rpm("PREUN"), &["0"], &[disable]),
        (of_rpm("POSTUN"), &["1"], &[reload, restart]),
        (of_rpm("POSTUN"), &["0"], &[reload]),
    ] {
        assert_eq!(calls(&script, arguments), expected, "{arguments:?}: {script}");
    }
}

#[test]
fn the_packages_name_the_site_and_order_prereleases() {
    let image = Image::small();
    let checkout = Checkout::of("repository = \"https://github.com/Example/weir\"\n");
    let manifest = checkout.read("Cargo.toml").replacen(
        concat!("version = \"", env!("CARGO_PKG_VERSION"), "\""),
        "version = \"99.0.0-rc.1\"",
        1,
    );
    checkout.write("Cargo.toml", &manifest);
    let script = || checkout.script("integration/release/packages.sh");
    let deb = image.package(&mut script(), "deb", "named");
    let field = |deb: &Path, name: &str| installed("dpkg-deb", &["--field", deb.to_str().unwrap(), name]);
    assert_eq!(field(&deb, "Homepage"), "https://example.github.io/weir/\n");
    assert_eq!(field(&deb, "Version"), "99.0.0~rc.1-1\n");
    let rpm = image.package(&mut script(), "rpm", "named");
    let query = ["-qp", "--queryformat", "%{URL} %{VERSION}", rpm.to_str().unwrap()];
    assert_eq!(installed("rpm", &query), "https://example.github.io/weir/ 99.0.0~rc.1");
    checkout.name("");
    let bare = image.package(&mut script(), "deb", "bare");
    assert_eq!(field(&bare, "Homepage").trim(), "");
    assert_eq!(field(&bare, "Maintainer"), "Weir's contributors\n");
}

#[test]
fn the_bill_of_materials_lists_what_is_linked() {
    let tuple = installed("rustc", &["--print", "host-tuple"]);
    let mut script = Command::new(repository().join("integration/release/sbom.py"));
    let bill = succeed(script.arg(tuple.trim()).current_dir(repository()));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &bill).unwrap();
    let read = client("bill_of_materials.py", &[file.path().to_str().unwrap()]);
    assert_eq!(read["error"], Value::Null);
    let names: BTreeSet<_> = read["components"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(names.len() > 100 && names.contains("hyper") && names.contains("aws-lc-sys"), "{names:?}");
    for other in ["criterion", "proptest", "cc", "weir"] {
        assert!(!names.contains(other), "{other} is not linked");
    }
    let bill: Value = serde_json::from_str(&bill).unwrap();
    let direct = bill["dependencies"]
        .as_array()
        .unwrap()
        .iter()
        .find(|needs| needs["ref"] == concat!("pkg:cargo/weir@", env!("CARGO_PKG_VERSION")));
    let direct = direct.unwrap()["dependsOn"].to_string();
    assert!(direct.contains("pkg:cargo/hyper@") && !direct.contains("pkg:cargo/criterion@"), "{direct}");
}
