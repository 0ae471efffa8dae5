//! Jobs that end what commands have started.

use crate::commands::Commands;
use crate::event_loop::EventLoop;
use crate::json::object;
use crate::process_tree::{KillOthers, KillTagged, Step, NOBODY, PAUSE_SECONDS, TAKE_SECONDS};
use crate::supervisor::{Job, Supervisor};

enum Stage {
    Killing(KillTagged),
    Reaping,
    /// The end of the command's own process has to be told to us, with pauses that begin with the one that a debugger needs.
    Reclaiming(Option<f64>),
}

/// Kills everything that a command started and that still lives, also long after its own exit.
pub struct Kill {
    exec_id: Vec<u8>,
    tag: Option<u64>,
    stage: Stage,
}

impl Kill {
    pub fn new(exec_id: &[u8], commands: &Commands) -> Kill {
        let tag = commands.tag_of(exec_id);
        let stage = tag.map_or(Stage::Reaping, |tag| Stage::Killing(KillTagged::new(tag)));
        Kill { exec_id: exec_id.to_vec(), tag, stage }
    }

    /// Only has the end of its process told to us, once it was killed.
    fn reclaim(exec_id: Vec<u8>) -> Kill {
        Kill { exec_id, tag: None, stage: Stage::Reclaiming(None) }
    }
}

impl Job for Kill {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        match &mut self.stage {
            Stage::Killing(kill) => {
                let still = self.tag.map_or(false, |tag| supervisor.commands.is_tagged(tag, &self.exec_id));
                let step = if still { kill.step(&supervisor.processes) } else { Step::Done };
                if step == Step::Done {
                    self.stage = Stage::Reaping;
                    return Step::Again;
                }
                step
            }
            Stage::Reaping => {
                // The dead still count as processes.
                if !supervisor.commands.reap(&mut supervisor.looper, &supervisor.processes) {
                    self.stage = Stage::Reclaiming(None);
                }
                Step::Again
            }
            Stage::Reclaiming(pause) => {
                // Its tracer is told first, and one of another command could keep that to itself for as long as it lives: it is
                // killed.
                let pid = match supervisor.commands.unreaped(&self.exec_id) {
                    Some(pid) if supervisor.processes.is_traced(pid) => pid,
                    _ => return Step::Done,
                };
                if pause.is_some() {
                    supervisor.processes.kill_tracer(pid);
                    while supervisor.commands.reap(&mut supervisor.looper, &supervisor.processes) {}
                }
                let next = if pause.is_some() { PAUSE_SECONDS } else { TAKE_SECONDS };
                *pause = Some(next);
                Step::After(next)
            }
        }
    }
}

/// Another process of a command of several cases, once nothing of the last one lives.
pub struct Renew {
    kill: Kill,
    number: u64,
}

impl Renew {
    pub fn new(number: u64, commands: &mut Commands) -> Option<Renew> {
        let exec_id = commands.get(number)?.exec_id.clone();
        Some(Renew { kill: Kill::new(&exec_id, commands), number })
    }
}

impl Job for Renew {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        let step = self.kill.step(supervisor);
        if step == Step::Done {
            supervisor.commands.renew(self.number, &mut supervisor.looper, &supervisor.processes);
        }
        step
    }
}

/// Kills what has lost its subreaper.
pub struct KillLost(KillTagged);

impl KillLost {
    pub fn new() -> KillLost {
        KillLost(KillTagged::new(NOBODY))
    }
}

impl Job for KillLost {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        self.0.step(&supervisor.processes)
    }
}

/// Kills what a command has started, and answers.
pub struct Cancel {
    kill: Kill,
    answer: Answer,
}

impl Cancel {
    pub fn new(kill: Kill, channel: u16, connection: u64) -> Cancel {
        Cancel { kill, answer: Answer { channel, connection } }
    }
}

impl Job for Cancel {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        let step = self.kill.step(supervisor);
        if step == Step::Done {
            self.answer.give(supervisor);
        }
        step
    }
}

struct Answer {
    channel: u16,
    connection: u64,
}

impl Answer {
    fn give(&self, supervisor: &mut Supervisor) {
        if supervisor.connection_number() == self.connection {
            supervisor.reply(self.channel, &object([]));
        }
    }
}

/// Gives all commands up but the main one, kills all that is none of its descendants, and answers.
pub struct CancelAll {
    kill: Option<KillOthers>,
    others: Vec<Vec<u8>>,
    reclaiming: Option<Kill>,
    answer: Answer,
}

impl CancelAll {
    pub fn new(channel: u16, connection: u64, commands: &mut Commands, looper: &mut EventLoop) -> CancelAll {
        let (others, tag) = commands.give_up_others(looper);
        let answer = Answer { channel, connection };
        CancelAll { kill: Some(KillOthers::new(tag)), others, reclaiming: None, answer }
    }
}

impl Job for CancelAll {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        if let Some(kill) = &mut self.kill {
            let step = kill.step(&supervisor.processes);
            if step == Step::Done {
                self.kill = None;
                return Step::Again;
            }
            return step;
        }
        if supervisor.commands.reap(&mut supervisor.looper, &supervisor.processes) {
            return Step::Again;
        }
        if let Some(kill) = &mut self.reclaiming {
            let step = kill.step(supervisor);
            if step != Step::Done {
                return step;
            }
        }
        self.reclaiming = self.others.pop().map(Kill::reclaim);
        if self.reclaiming.is_none() {
            self.answer.give(supervisor);
            return Step::Done;
        }
        Step::Again
    }
}
