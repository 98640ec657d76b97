//! Has the server compile user scripts before a request needs them.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::timeout;

use super::Node;
use crate::engine::algorithms::script::ScriptSource;
use crate::store::redis::call::{describe, probe};

/// How long a server may take to compile a script. No request waits for it.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

impl Node {
    /// Has the server compile each script, and logs those that it cannot.
    pub(super) async fn check_scripts(&self, scripts: &[Arc<ScriptSource>]) {
        for script in scripts {
            let Some(live) = self.live.load_full() else { return };
            let mut command = Cmd::new();
            command.arg("EVAL").arg(probe(script)).arg(0);
            let answer = timeout(CHECK_TIMEOUT, live.reply(&command)).await;
            // Only an error reply concerns the script. A broken connection has its own line in the log.
            if let Ok(Err(error)) = answer.map(|answer| answer.and_then(Value::extract_error))
                && error.code().is_some()
            {
                let (file, error) = (script.file.as_str(), describe(&error));
                tracing::error!(file, "Redis cannot compile this script, so its limits have no answer: {error}");
            }
        }
    }
}
