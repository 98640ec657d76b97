//! Names the compiler and the target for `weir --version`. Runs again only if one of them changes.

#![allow(clippy::print_stdout, reason = "Cargo reads it")]

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().map(|output| output.stdout).unwrap_or_default();
    println!("cargo::rustc-env=WEIR_COMPILER={}", String::from_utf8_lossy(&version).trim());
    println!("cargo::rustc-env=WEIR_TARGET={}", env::var("TARGET").unwrap_or_default());
}
