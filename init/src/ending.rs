//! How a sandbox ends: asked, killed, drained, and what it says last.

use crate::event_loop::Call;
use crate::frames;
use crate::json::{object, Value};
use crate::networked;
use crate::supervisor::Supervisor;
use crate::sys;

const STEP_SECONDS: f64 = 0.005;
const HANG_UP_SECONDS: f64 = 0.2;
const WAIT_SECONDS: f64 = 0.1;
const KILL_SECONDS: f64 = 5.0;
const DRAIN_SECONDS: f64 = 1.0;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Everybody was asked to end.
    Asking,
    Killing,
    /// What is there is sent.
    Draining,
    /// ENDED is on its way.
    Leaving,
}

/// One way from living to gone; a second reason that comes meanwhile changes nothing but may shorten the grace.
pub struct Ending {
    pub reason: Option<&'static str>,
    returncode: Option<i32>,
    deadline: f64,
    stage: Stage,
    /// A main command's output and its code wait for the next server.
    patient: bool,
}

impl Ending {
    pub fn new() -> Ending {
        Ending { reason: None, returncode: None, deadline: 0.0, stage: Stage::Asking, patient: false }
    }

    pub fn has_begun(&self) -> bool {
        self.reason.is_some()
    }
}

impl Supervisor {
    /// Ends the sandbox: SIGTERM, after the grace SIGKILL, output drained, ENDED.
    ///
    /// A grace of 0 kills at once.
    pub fn end(&mut self, reason: &'static str, grace_seconds: f64, returncode: Option<i32>) {
        let deadline = self.looper.now() + grace_seconds;
        if self.ending.has_begun() {
            if self.ending.stage == Stage::Asking {
                self.ending.deadline = self.ending.deadline.min(deadline);
            }
            return;
        }
        self.ending = Ending {
            reason: Some(reason),
            returncode,
            deadline,
            stage: Stage::Asking,
            patient: matches!(reason, "exited" | "oom"),
        };
        self.commands.ending = true;
        if grace_seconds > 0.0 {
            // Not only to commands that run: a server that an ended one left behind would wait for the kill.
            self.processes.signal_all(sys::SIGTERM);
            self.hang_up();
        }
        self.end_on();
    }

    /// The main command is over, be it by our own signals.
    pub fn main_exited(&mut self, returncode: i32, oom_killed: bool) {
        self.ending.returncode = Some(returncode);
        if !self.ending.has_begun() {
            self.end(if oom_killed { "oom" } else { "exited" }, 0.0, Some(returncode));
        }
    }

    /// No server came for what was left to say.
    pub fn wait_for_nobody(&mut self) {
        self.ending.patient = false;
    }

    /// Hangs terminals up, until they are gone: a shell may miss it just before it begins to wait for a key or a job.
    pub fn hang_up(&mut self) {
        if self.ending.stage == Stage::Asking {
            self.commands.hang_up();
            self.looper.after(HANG_UP_SECONDS, Call::HangUp);
        }
    }

    /// Goes on, now and from time to time.
    pub fn end_on(&mut self) {
        self.come_nearer();
        if self.ending.stage != Stage::Leaving {
            let waits = self.ending.patient && self.connection.is_none();
            self.looper.after(if waits { WAIT_SECONDS } else { STEP_SECONDS }, Call::EndOn);
        }
    }

    /// Something happened that may bring the end nearer.
    pub fn come_nearer(&mut self) {
        if !self.ending.has_begun() {
            return;
        }
        let now = self.looper.now();
        if self.ending.stage == Stage::Asking {
            if now < self.ending.deadline && self.processes.signal_all(0) {
                return;
            }
            self.ending.deadline = now + KILL_SECONDS;
            self.ending.stage = Stage::Killing;
        }
        if self.ending.stage == Stage::Killing {
            self.processes.signal_all(sys::SIGKILL);
            while self.commands.reap(&mut self.looper, &self.processes) {}
            self.tell_news();
            if self.processes.signal_all(0) && now < self.ending.deadline {
                return;
            }
            self.ending.deadline = now + DRAIN_SECONDS;
            self.ending.stage = Stage::Draining;
        }
        if self.ending.stage == Stage::Draining {
            match &self.connection {
                // The orphan timeout ends that.
                None if self.ending.patient => {
                    self.ending.deadline = now + DRAIN_SECONDS;
                    return;
                }
                None => {}
                Some(connection) => {
                    let queued = |number| connection.sources.contains(&crate::connection::Source::Command(number));
                    let sent = connection.is_idle() && self.commands.all_sent(self.ending.patient, queued);
                    if now < self.ending.deadline && !sent {
                        return;
                    }
                }
            }
            self.say_the_end();
        }
    }

    fn say_the_end(&mut self) {
        self.ending.stage = Stage::Leaving;
        let ended = object([
            ("reason", self.ending.reason.unwrap_or("").into()),
            ("returncode", self.ending.returncode.into()),
        ]);
        self.leave_note(&ended);
        for line in self.commands.unconfirmed() {
            // Who was cut off comes back for them.
            if sys::write_all(&self.note, &line).is_err() {
                break;
            }
        }
        if let Some(connection) = &mut self.connection {
            connection.send_json(frames::ENDED, &ended, 0);
        }
        self.ending.deadline = self.looper.now() + DRAIN_SECONDS;
        self.flush();
        self.leave_when_sent();
    }

    pub fn leave_when_sent(&mut self) {
        let sent = self.connection.as_ref().map_or(true, |connection| connection.is_idle());
        if sent || self.looper.now() >= self.ending.deadline {
            sys::exit_now(self.exit_status());
        }
        self.looper.after(STEP_SECONDS, Call::LeaveWhenSent);
    }

    /// Over a network nobody may be there to hear why: who made the place reads this.
    fn exit_status(&self) -> i32 {
        match self.ending.reason {
            _ if self.newcomers.is_none() => 0,
            Some("lifetime") => 81,
            Some("idle") => 82,
            Some("orphaned") => networked::ORPHANED,
            Some("exited" | "oom") => 84,
            _ => 0,
        }
    }

    /// Writes a line where a later server looks for the reason.
    pub fn leave_note(&self, line: &Value) {
        let mut text = line.to_bytes();
        text.push(b'\n');
        // A full disk must not keep the sandbox.
        drop(sys::write_some(&self.note, &text));
    }
}
