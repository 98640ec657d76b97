//! User, password and database for the servers that decide. The password may be in a file that changes while gateways run.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{Cmd, RedisConnectionInfo};
use tokio::time::{Instant, sleep, timeout};

use super::diagnosis::Diagnosis;
use crate::store::Fault;

/// The longest password, in bytes. Access tokens of clouds, which take the place of one, have some 2 KiB.
const LONGEST: u64 = 16 * 1024;

/// The deadline for reading the file. A network file system may hang.
const READ_TIMEOUT: Duration = Duration::from_millis(250);

/// The passwords that are remembered. While servers of one store learn a new password one by one, two of them work.
const REMEMBERED: usize = 2;

/// The interval at which the file is read while the server rejects all passwords.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The longest time for which the file is read that often.
const PATIENCE: Duration = Duration::from_secs(1);

/// The credentials of a store, shared by all its connections.
#[derive(Clone)]
pub(super) struct Credentials {
    /// Without the password, if that is in a file.
    login: RedisConnectionInfo,
    file: Option<Arc<PasswordFile>>,
}

/// A password. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Password(Arc<str>);

/// The user and the password of one login.
struct Login {
    info: RedisConnectionInfo,
    /// The password, if it is from a file.
    password: Option<Password>,
}

struct PasswordFile {
    path: PathBuf,
    state: Mutex<State>,
    /// Held by the thread that reads, so that a file system that hangs keeps one thread.
    reading: Arc<tokio::sync::Mutex<()>>,
}

struct State {
    /// The one that the file had last.
    current: Password,
    /// The changes of it.
    changes: u64,
    /// The last passwords that a server took, the latest first.
    worked: Vec<Password>,
    /// The last password whose rejection is logged.
    rejected: Option<Password>,
    /// Why the file could not be read last, as it was logged.
    problem: Option<String>,
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Credentials {
    /// Those of a URL, or those that the options name beside a URL without any.
    pub(super) fn new(login: RedisConnectionInfo, user: Option<&str>, file: Option<&Path>) -> Result<Self, String> {
        let given = match (user, file) {
            (None, None) => return Ok(Self { login, file: None }),
            (Some(_), None) => return Err("--store-user needs --store-password-file".into()),
            (None, Some(_)) => "--store-password-file",
            (Some(_), Some(_)) => "--store-user and --store-password-file",
        };
        if login.username().is_some() || login.password().is_some() {
            return Err(format!("the URL has a user or a password as well as {given}: remove what is before the `@`"));
        }
        let login = user.map_or(login.clone(), |user| login.set_username(user));
        let file = file.map(PasswordFile::open).transpose()?.map(Arc::new);
        Ok(Self { login, file })
    }

    /// The name of the user: Redis' own for a connection without one.
    pub(super) fn user(&self) -> &str {
        self.login.username().unwrap_or("default")
    }

    /// Opens something with the first login that the server takes. Returns the password too, if it is from a file.
    pub(super) async fn log_in<T, F>(
        &self,
        open: impl Fn(RedisConnectionInfo) -> F,
    ) -> Result<(T, Option<Password>), Diagnosis>
    where
        F: Future<Output = Result<T, Diagnosis>>,
    {
        let mut first = None;
        for Login { info, password } in self.logins().await {
            match open(info).await {
                Ok(opened) => {
                    self.worked(password.as_ref());
                    return Ok((opened, password));
                }
                Err(rejected) if rejected.fault == Fault::Authentication => drop(first.get_or_insert(rejected)),
                Err(diagnosis) => return Err(diagnosis),
            }
        }
        Err(first.unwrap_or_else(|| Diagnosis::new(Fault::Authentication, "no password")))
    }

    /// The logins to try, in this order: by the file as it is now, then by the last passwords that worked.
    async fn logins(&self) -> Vec<Login> {
        let Some(file) = &self.file else { return vec![Login { info: self.login.clone(), password: None }] };
        file.read_again().await;
        let state = file.state.lock();
        let others = state.worked.iter().filter(|password| **password != state.current);
        std::iter::once(&state.current)
            .chain(others)
            .map(|password| Login {
                info: self.login.clone().set_password(&*password.0),
                password: Some(password.clone()),
            })
            .collect()
    }

    /// The password in the file, which is read for it. `None` if it is not in a file.
    pub(super) async fn current(&self) -> Option<Password> {
        let file = self.file.as_ref()?;
        file.read_again().await;
        Some(file.state.lock().current.clone())
    }

    /// The command that logs an open connection in again.
    pub(super) fn auth(&self, password: &Password) -> Cmd {
        let mut command = redis::cmd("AUTH");
        if let Some(user) = self.login.username() {
            command.arg(user);
        }
        command.arg(&*password.0);
        command
    }

    /// Notes that a server has taken a password. Returns true if the last one took another.
    pub(super) fn worked(&self, password: Option<&Password>) -> bool {
        if let (Some(file), Some(password)) = (&self.file, password) {
            let mut state = file.state.lock();
            if state.worked.first() != Some(password) {
                state.worked.retain(|known| known != password);
                state.worked.insert(0, password.clone());
                state.worked.truncate(REMEMBERED);
                return true;
            }
        }
        false
    }

    /// Notes that a server has rejected a password. Returns false if that was noted before.
    pub(super) fn rejected(&self, password: &Password) -> bool {
        let Some(file) = &self.file else { return false };
        let mut state = file.state.lock();
        let is_new = state.rejected.as_ref() != Some(password);
        state.rejected = Some(password.clone());
        is_new
    }

    /// The changes of the password in the file that were seen.
    pub(super) fn changes(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.state.lock().changes)
    }

    /// Waits for another password than when there were `known` changes. Returns false if none comes soon, and at once if no
    /// password has worked yet: then it is wrong, rather than about to change.
    pub(super) async fn changed(&self, known: u64) -> bool {
        let Some(file) = self.file.as_ref().filter(|file| !file.state.lock().worked.is_empty()) else { return false };
        let begun = Instant::now();
        loop {
            file.read_again().await;
            if file.state.lock().changes != known {
                return true;
            }
            if begun.elapsed() >= PATIENCE {
                return false;
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}

impl PasswordFile {
    fn open(path: &Path) -> Result<Self, String> {
        let current = read(path).map_err(|reason| format!("--store-password-file `{}`: {reason}", path.display()))?;
        let state = State { current, changes: 0, worked: Vec::new(), rejected: None, problem: None };
        Ok(Self { path: path.to_owned(), state: Mutex::new(state), reading: Arc::default() })
    }

    /// Reads the file. If that fails, what it had stays current.
    async fn read_again(self: &Arc<Self>) {
        let reading = async {
            let turn = Arc::clone(&self.reading).lock_owned().await;
            let file = Arc::clone(self);
            let read = tokio::task::spawn_blocking(move || {
                file.take(read(&file.path));
                drop(turn);
            });
            read.await
        };
        match timeout(READ_TIMEOUT, reading).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.take(Err(error.to_string())),
            Err(_) => self.take(Err(format!("cannot be read within {READ_TIMEOUT:?}"))),
        }
    }

    fn take(&self, read: Result<Password, String>) {
        let mut state = self.state.lock();
        match read {
            Ok(password) => {
                state.problem = None;
                if password != state.current {
                    state.current = password;
                    state.changes += 1;
                }
            }
            Err(reason) if state.problem.as_ref() != Some(&reason) => {
                tracing::warn!(
                    file = %self.path.display(), reason,
                    "--store-password-file cannot be used, the password that it had stays"
                );
                state.problem = Some(reason);
            }
            Err(_) => {}
        }
    }
}

/// Reads a password. A newline at its end is not a part of it.
fn read(path: &Path) -> Result<Password, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(LONGEST + 3).read_to_string(&mut text).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => "is not UTF-8".to_owned(),
        _ => error.to_string(),
    })?;
    let password = text.strip_suffix('\n').map_or(&*text, |text| text.strip_suffix('\r').unwrap_or(text));
    if password.is_empty() {
        return Err("is empty: write the password into it, as it is".into());
    }
    if password.len() as u64 > LONGEST {
        return Err(format!("is longer than {LONGEST} bytes: is it the password?"));
    }
    Ok(Password(password.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn passwords(logins: &[Login]) -> Vec<&str> {
        logins.iter().map(|login| login.info.password().unwrap()).collect()
    }

    #[test]
    fn the_file_has_the_password_and_perhaps_a_newline() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        let full = "a".repeat(16 * 1024);
        for (text, expected) in [
            ("p@ss%40:/ word", Ok("p@ss%40:/ word")),
            ("secret\n", Ok("secret")),
            ("secret\r\n", Ok("secret")),
            ("secret\n\n", Ok("secret\n")),
            (&format!("{full}\r\n"), Ok(&*full)),
            (&format!("{full}a"), Err("is longer than 16384 bytes")),
            ("", Err("is empty")),
            ("\n", Err("is empty")),
        ] {
            fs::write(&path, text).unwrap();
            match (read(&path), expected) {
                (Ok(password), Ok(expected)) => assert_eq!(&*password.0, expected),
                (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{reason}"),
                (found, _) => panic!("{text:.20}: {found:?}"),
            }
        }
        fs::write(&path, [0xff]).unwrap();
        assert_eq!(read(&path), Err("is not UTF-8".into()));
    }

    #[tokio::test]
    async fn passwords_that_worked_are_tried_after_that_of_the_file() {
        // What a kubelet does: `password` -> `..data/password`, and `..data` is renamed over.
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        let swap = |password: &str| {
            fs::create_dir(root.join(password)).unwrap();
            fs::write(root.join(password).join("password"), password).unwrap();
            symlink(password, root.join("..data_tmp")).unwrap();
            fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
        };
        swap("one");
        symlink("..data/password", root.join("password")).unwrap();
        let path = root.join("password");
        let credentials = Credentials::new(RedisConnectionInfo::default(), Some("weir"), Some(&path)).unwrap();
        let logins = credentials.logins().await;
        assert_eq!((passwords(&logins), credentials.user()), (vec!["one"], "weir"));
        assert!(!credentials.changed(0).await, "no password has worked, so none is awaited");
        credentials.worked(logins[0].password.as_ref());
        for (password, expected) in [
            ("two", vec!["two", "one"]),
            ("three", vec!["three", "two", "one"]),
            ("four", vec!["four", "three", "two"]),
        ] {
            let known = credentials.changes();
            swap(password);
            assert!(credentials.changed(known).await);
            let logins = credentials.logins().await;
            assert_eq!(passwords(&logins), expected);
            assert!(credentials.rejected(logins[0].password.as_ref().unwrap()));
            assert!(!credentials.rejected(logins[0].password.as_ref().unwrap()), "it is logged once");
            credentials.worked(logins[0].password.as_ref());
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(passwords(&credentials.logins().await), ["four", "three"]);
    }
}
