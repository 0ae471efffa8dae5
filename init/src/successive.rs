//! What commands of several cases have in common: as many processes as they take, with a line of JSON for each verdict.
//!
//! Such a command ends with 0 if there is a verdict on each, whatever they are, and a last line says so; else as its last process
//! did, without that line.

use crate::command::Command;
use crate::errors::{Fields, Refused};
use crate::json::Value;
use crate::sys::{Status, Usage};

/// So much of verdicts waits for more of them before it is sent.
pub const GATHERED_BYTES: u64 = 64 << 10;

/// What follows the end of a process.
#[derive(PartialEq, Eq, Debug)]
pub enum Next {
    /// Another process, once nothing of this one lives.
    Renew,
    /// More has to come first.
    Wait,
    /// None: the command is over.
    Over,
}

/// How far the cases have come.
pub struct Series {
    limits: Vec<Option<f64>>,
    /// How many have a verdict.
    pub done: usize,
    pub status: Status,
    pub usage: Usage,
}

impl Series {
    pub fn read(cases: &Value) -> Result<Series, Refused> {
        let wrong = || Refused::invalid("a malformed request: \"timeout_seconds\"");
        let limits = match Fields(cases).value("timeout_seconds")? {
            Value::Array(limits) => limits
                .iter()
                .map(|limit| match limit {
                    Value::Null => Ok(None),
                    Value::Int(seconds) => Ok(Some(*seconds as f64)),
                    Value::Float(seconds) => Ok(Some(*seconds)),
                    _ => Err(wrong()),
                })
                .collect::<Result<_, _>>()?,
            _ => return Err(wrong()),
        };
        Ok(Series { limits, done: 0, status: Status::Exited(0), usage: Usage::default() })
    }

    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Whether there is a verdict on each.
    pub fn is_complete(&self) -> bool {
        self.done >= self.limits.len()
    }

    /// Of the case that is next.
    pub fn limit(&self) -> Option<f64> {
        self.limits.get(self.done).copied().flatten()
    }

    /// Takes note of a process that is gone.
    pub fn add_usage(&mut self, status: Status, usage: Usage) {
        self.status = status;
        self.usage.cpu_seconds += usage.cpu_seconds;
        self.usage.max_rss_bytes = self.usage.max_rss_bytes.max(usage.max_rss_bytes);
    }

    /// A case is over.
    pub fn judged(&mut self, verdict: &Value, command: &mut Command) {
        self.done += 1;
        let mut line = verdict.to_bytes();
        line.push(b'\n');
        command.outputs[0].put(&line);
    }

    /// There is a verdict on each.
    pub fn end_complete(&mut self, command: &mut Command) {
        command.outputs[0].put(format!("{{\"cases\":{}}}\n", self.done).as_bytes());
        self.status = Status::Exited(0);
    }
}
