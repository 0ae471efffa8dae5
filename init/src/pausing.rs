//! A pause of all that runs inside, for as long as somebody reads what must not change meanwhile.

use crate::errors::Refused;
use crate::event_loop::EventLoop;
use crate::process_tree::{Step, Still};
use crate::supervisor::{Job, Supervisor};
use crate::sys;

/// Pauses between two looks whether everybody has come to a standstill, which grow, and while they stand.
const FIRST_SECONDS: f64 = 0.0005;
const LONGEST_SECONDS: f64 = 0.1;
/// So many times as long as a look took there is no other, once they stand.
const REST: f64 = 20.0;
/// So long is waited for those that the kernel lets take no signal. Who waits in a `vfork` does nothing else either.
const NEARLY_SECONDS: f64 = 1.0;
/// So long is waited for others: a large write goes on until it is done.
const PATIENCE_SECONDS: f64 = 20.0;
/// Those after which a process runs or stands; the last three are those of terminals.
const OF_STANDING: [i32; 5] = [sys::SIGCONT, sys::SIGSTOP, 20, 21, 22];

#[derive(Default)]
pub struct Pause {
    /// The number of this one, if there is one.
    number: Option<u64>,
    is_still: bool,
    /// Signals that would end it for a command, or outlast it, by its number: the last one of each.
    late: Vec<(u64, i32)>,
}

impl Pause {
    pub fn is_still(&self) -> bool {
        self.is_still
    }

    /// Keeps a signal for its end; false where it can be sent at once.
    pub fn keeps(&mut self, command: u64, signal: i32) -> bool {
        if self.number.is_none() || !OF_STANDING.contains(&signal) {
            return false;
        }
        self.late.retain(|(other, _)| *other != command);
        self.late.push((command, signal));
        true
    }
}

impl Supervisor {
    /// Has everybody stand still until no request is open that wants it; `begin_layers` is called then.
    pub fn pause(&mut self) -> Result<(), Refused> {
        if self.pause.number.is_some() {
            return Ok(());
        }
        self.processes.pause().map_err(|error| Refused::os(b"/", &error))?;
        let number = self.next_number();
        self.pause = Pause { number: Some(number), ..Pause::default() };
        self.start_job(Box::new(Stopping { number, began: self.looper.now(), seconds: FIRST_SECONDS }));
        Ok(())
    }

    /// Has everybody go on if no open request wants them to stand still any more, however it ended; to be called in each turn.
    pub fn look_at_pause(&mut self) {
        if self.pause.number.is_none() {
            return;
        }
        if self.ending.has_begun() {
            // Whoever is asked to end has to hear it.
            self.refuse_paused(&Refused::unavailable("ending", "the sandbox ends, and its commands with it", false));
        }
        if self.open.values().any(|open| open.wants_pause()) {
            return;
        }
        let pause = std::mem::take(&mut self.pause);
        self.processes.resume();
        for (number, signal) in pause.late {
            if let Some(command) = self.commands.get(number) {
                command.signal(signal);
            }
        }
    }

    fn refuse_paused(&mut self, refused: &Refused) {
        let channels: Vec<u16> =
            self.open.iter().filter(|(_, open)| open.wants_pause()).map(|(channel, _)| *channel).collect();
        for channel in channels {
            self.refuse(channel, refused);
        }
    }
}

/// Waits until everybody stands still, and sees to it that they do.
struct Stopping {
    number: u64,
    began: f64,
    seconds: f64,
}

impl Stopping {
    fn is_done(&self, still: Still, looper: &EventLoop) -> bool {
        still == Still::Yes || (still == Still::Nearly && looper.now() >= self.began + NEARLY_SECONDS)
    }
}

impl Job for Stopping {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        if supervisor.pause.number != Some(self.number) {
            return Step::Done;
        }
        let before = supervisor.looper.now();
        let still = supervisor.processes.keep_still();
        if supervisor.pause.is_still {
            return Step::After(LONGEST_SECONDS.max(REST * (supervisor.looper.now() - before)));
        }
        match still {
            Ok(still) if self.is_done(still, &supervisor.looper) => {
                supervisor.pause.is_still = true;
                supervisor.begin_layers();
                return Step::After(LONGEST_SECONDS);
            }
            Ok(_) if supervisor.looper.now() < self.began + PATIENCE_SECONDS => {}
            Ok(_) => {
                let message = "its commands do not come to a standstill";
                supervisor.refuse_paused(&Refused::file(b"/", "timeout", message));
            }
            Err(error) => supervisor.refuse_paused(&Refused::os(b"/", &error)),
        }
        self.seconds = (2.0 * self.seconds).min(LONGEST_SECONDS);
        Step::After(self.seconds)
    }
}
