//! Limits that are kept by looking: what goes beyond one is killed.
//!
//! Nothing is looked at while no command's process lives, and next to nothing while none has run since the last look.

pub mod cgroup;
pub mod disk;
mod kernel_memory;
pub mod memory;
mod sockets;
pub mod sysv;

use std::collections::HashMap;
use std::io;
use std::os::unix::io::OwnedFd;

use crate::commands::Commands;
use crate::errors::{Fields, Refused};
use crate::event_loop::EventLoop;
use crate::process_tree::{Processes, Step};
use crate::sys;
use disk::Disk;
use kernel_memory::KernelMemory;
use memory::{Alive, Shares, Stores, PROCESSES_A_TURN};
use sockets::Sockets;

const SAMPLE_SECONDS: f64 = 0.1;
/// Between two looks at a sandbox that would be at its limit before the next one.
const SHORTEST_SECONDS: f64 = 0.01;
/// So many times as long as an exact look took there is no other, while the rough one grows by less than there is room.
const REST: f64 = 20.0;
/// What the machine, or the server's user, has so much of for all: names of the limits, and what they are called.
const COUNTS: [(&str, &str); 5] = [
    ("watches", "watches of epoll"),
    ("filters", "filters of system calls"),
    ("orphans", "closed connections with bytes that nobody took"),
    ("tcp_bytes", "bytes in connections"),
    ("udp_bytes", "bytes in datagrams"),
];

/// What follows from a look.
pub enum Act {
    /// A command has taken too much memory, by its tag; where there is none of that tag, these processes have.
    OutOfMemory(Option<u64>, Vec<i32>),
    /// Everything goes, and says why.
    KillAll(String),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Who,
    Kernel,
    Sockets,
    Rough,
    Exact,
}

/// The watched limits of one sandbox.
pub struct Watch {
    pub disk: Disk,
    alive: Alive,
    kernel: KernelMemory,
    sockets: Sockets,
    stores: Option<Stores>,
    memory: Option<u64>,
    most_processes: Option<u64>,
    counts: [Option<u64>; 5],
    swap: bool,
    is_grouped: bool,
    /// Those of the machine are none of the sandbox's business.
    owns_system_v: bool,
    /// Whether the job runs.
    pub running: bool,
    stage: Stage,
    changed: bool,
    pids: Vec<i32>,
    at: usize,
    /// Of the rough measure that is being taken, and of the last.
    rising: u64,
    rough: u64,
    stored: u64,
    nameless: HashMap<i32, u64>,
    /// The rough measure is beyond the limit, and it was not time for the exact one.
    unsure: bool,
    /// When it is time for an exact look, and what both measures were at the last.
    exact: Option<(f64, u64, u64)>,
    shares: Shares,
    began: f64,
}

impl Watch {
    pub fn new(layer: Option<OwnedFd>, sockets: Option<OwnedFd>) -> Watch {
        Watch {
            disk: Disk::new(layer),
            alive: Alive::default(),
            kernel: KernelMemory::default(),
            sockets: Sockets::new(sockets),
            stores: None,
            memory: None,
            most_processes: None,
            counts: [None; 5],
            swap: false,
            is_grouped: false,
            owns_system_v: true,
            running: false,
            stage: Stage::Who,
            changed: false,
            pids: Vec::new(),
            at: 0,
            rising: 0,
            rough: 0,
            stored: 0,
            nameless: HashMap::new(),
            unsure: false,
            exact: None,
            shares: Shares::default(),
            began: 0.0,
        }
    }

    /// Commands have a filter of system calls beside that of process 1.
    pub fn commands_have_a_filter(&mut self) {
        self.kernel.given_filters = 1;
    }

    /// Keeps these: `memory`, `disk`, `inodes`, `processes` and those of `COUNTS`; `swap`, `layer_in_memory` and `machines_root`
    /// (whether /dev/shm and its like are not the sandbox's own) say how things are.
    pub fn limit(&mut self, limits: &Fields<'_>, is_grouped: bool) -> Result<(), Refused> {
        self.memory = limits.size_or_none("memory")?;
        self.most_processes = limits.size_or_none("processes")?;
        for (count, (name, _)) in self.counts.iter_mut().zip(COUNTS) {
            *count = limits.size_or_none(name)?;
        }
        self.swap = limits.flag_or("swap", Some(false))?;
        self.is_grouped = is_grouped;
        self.owns_system_v = !limits.flag_or("machines_root", Some(false))?;
        let mut stores = Stores::new(self.owns_system_v);
        if limits.flag_or("layer_in_memory", Some(false))? {
            if let Some(layer) = self.disk.layer() {
                stores.add(layer);
            }
        }
        self.stores = Some(stores);
        self.disk.limit(limits.size_or_none("disk")?, limits.size_or_none("inodes")?);
        Ok(())
    }

    /// Whether anything is limited that has to be looked at.
    pub fn watches(&self) -> bool {
        let others = self.is_grouped || self.memory.is_some() || self.most_processes.is_some();
        self.disk.is_limited() || others || self.counts.iter().any(Option::is_some)
    }

    fn system_v_bytes(&self, processes: &Processes) -> u64 {
        if self.owns_system_v {
            sysv::used_bytes(processes)
        } else {
            0
        }
    }

    /// Takes away what no process is attached to.
    pub fn remove_system_v(&self, processes: &Processes) {
        if self.owns_system_v {
            sysv::remove(processes);
        }
    }

    pub fn pids(&self) -> Vec<i32> {
        self.alive.pids()
    }

    /// A part of a look; looks go on for as long as any process lives.
    pub fn step(
        &mut self,
        processes: &Processes,
        commands: &mut Commands,
        looper: &mut EventLoop,
    ) -> (Step, Option<Act>) {
        match self.go_on(processes, commands, looper) {
            Ok(result) => result,
            Err(error) => {
                self.stage = Stage::Who;
                let act = (sys::number_of(&error) == sys::EMFILE).then(|| {
                    // Someone inside took our descriptors away by prlimit. What cannot be watched must not go on.
                    let why = "aviato: killed: the sandbox took the means to watch its limits away";
                    Act::KillAll(why.to_owned())
                });
                (Step::After(SAMPLE_SECONDS), act)
            }
        }
    }

    fn go_on(
        &mut self,
        processes: &Processes,
        commands: &mut Commands,
        looper: &mut EventLoop,
    ) -> io::Result<(Step, Option<Act>)> {
        match self.stage {
            Stage::Who => self.look_who(processes, looper),
            Stage::Kernel => {
                let all_of_it = self.memory.is_some() || self.counts[0].is_some();
                if let Some(any) = self.kernel.step(processes, &self.alive.ran, all_of_it)? {
                    // Whoever rests since could not be looked at while he ran: it was not time.
                    self.changed |= any;
                    self.stage = Stage::Sockets;
                }
                Ok((Step::Again, None))
            }
            Stage::Sockets => {
                if self.changed || self.unsure {
                    self.sockets.look(processes);
                }
                if let Some(act) = self.too_many_counts() {
                    return Ok(self.over(SAMPLE_SECONDS, Some(act)));
                }
                if let Some(group) = &mut commands.group {
                    if group.limit > 0 && self.sockets.bytes > group.limit {
                        // Groups of version 1 count few of these.
                        let why = format!(
                            "aviato: killed: its sockets hold more than the memory limit of {} bytes",
                            group.limit
                        );
                        return Ok(self.over(SAMPLE_SECONDS, Some(Act::KillAll(why))));
                    }
                    if self.changed {
                        group.look(processes, &self.pids);
                    }
                    commands.blame(None);
                    return Ok(self.over(SAMPLE_SECONDS, None));
                }
                if self.memory.is_some() && (self.changed || self.unsure || self.disk.nameless != self.nameless) {
                    self.nameless = self.disk.nameless.clone();
                    let stores = self.stores.as_ref().map_or(0, Stores::used_bytes);
                    self.stored = stores + self.nameless.values().sum::<u64>() + self.system_v_bytes(processes);
                    self.rising = self.stored + self.sockets.bytes + self.kernel.bytes.values().sum::<u64>();
                    self.at = 0;
                    self.stage = Stage::Rough;
                    return Ok((Step::Again, None));
                }
                Ok(self.over(SAMPLE_SECONDS, None))
            }
            Stage::Rough => Ok(self.look_roughly(processes, looper)),
            Stage::Exact => Ok(self.look_exactly(processes, looper)),
        }
    }

    fn over(&mut self, pause: f64, act: Option<Act>) -> (Step, Option<Act>) {
        self.stage = Stage::Who;
        (Step::After(pause), act)
    }

    fn look_who(&mut self, processes: &Processes, looper: &mut EventLoop) -> io::Result<(Step, Option<Act>)> {
        self.changed = match self.alive.look(processes)? {
            Some(changed) => changed,
            None => return Ok((Step::Again, None)),
        };
        self.pids = self.alive.pids();
        if self.pids.is_empty() && self.alive.has_lost {
            return Ok(self.over(SAMPLE_SECONDS, None));
        }
        if self.pids.is_empty() {
            self.disk.touched(looper);
            self.running = false;
            return Ok((Step::Done, None));
        }
        if self.changed {
            self.disk.touched(looper);
        }
        if let Some(most) = self.most_processes.filter(|most| self.pids.len() as u64 > *most) {
            // Who forks as fast as this is not counted one by one.
            let why = format!("aviato: killed: the sandbox's limit of {most} processes is reached");
            return Ok(self.over(SAMPLE_SECONDS, Some(Act::KillAll(why))));
        }
        self.stage = Stage::Sockets;
        if self.memory.is_some() || self.counts.iter().any(Option::is_some) {
            self.changed |= self.kernel.begin(&self.alive.ran);
            self.stage = Stage::Kernel;
        }
        Ok((Step::Again, None))
    }

    fn too_many_counts(&self) -> Option<Act> {
        let found = [
            self.kernel.watches,
            self.kernel.filters,
            self.sockets.orphans,
            self.sockets.tcp_bytes,
            self.sockets.udp_bytes,
        ];
        for ((most, found), (_, words)) in self.counts.iter().zip(found).zip(COUNTS) {
            if let Some(most) = most.filter(|most| found > *most) {
                let why = format!("aviato: killed: the sandbox's limit of {most} {words} is reached");
                return Some(Act::KillAll(why));
            }
        }
        None
    }

    fn look_roughly(&mut self, processes: &Processes, looper: &EventLoop) -> (Step, Option<Act>) {
        let end = (self.at + PROCESSES_A_TURN).min(self.pids.len());
        for pid in &self.pids[self.at..end] {
            self.rising += memory::rough_bytes(processes, *pid, self.swap);
        }
        self.at = end;
        if end < self.pids.len() {
            return (Step::Again, None);
        }
        let limit = self.memory.unwrap_or(u64::MAX);
        let grown = self.rising.saturating_sub(self.rough);
        self.rough = self.rising;
        let is_due = self.exact.map_or(true, |(due, rough_then, used_then)| {
            // It is time, or more has come than there was room.
            looper.now() >= due || self.rough.saturating_sub(rough_then) >= limit.saturating_sub(used_then)
        });
        self.unsure = self.rough > limit && !is_due;
        if self.rough > limit && is_due {
            self.shares = Shares::default();
            self.began = looper.now();
            self.at = 0;
            self.stage = Stage::Exact;
            return (Step::Again, None);
        }
        let room = limit.saturating_sub(self.rough);
        if grown > 0 && self.rough <= limit && room < 2 * grown {
            let pause = SAMPLE_SECONDS * room as f64 / (2 * grown) as f64;
            return self.over(pause.max(SHORTEST_SECONDS), None);
        }
        self.over(SAMPLE_SECONDS, None)
    }

    fn look_exactly(&mut self, processes: &Processes, looper: &EventLoop) -> (Step, Option<Act>) {
        if let Some(pid) = self.pids.get(self.at) {
            let nameless = self.nameless.get(pid).copied().unwrap_or(0);
            let kernel = self.kernel.bytes.get(pid).copied().unwrap_or(0);
            self.shares.add(processes, *pid, nameless, kernel);
            self.at += 1;
            return (Step::Again, None);
        }
        let limit = self.memory.unwrap_or(u64::MAX);
        let used = self.shares.total(self.stored) + self.sockets.bytes;
        let now = looper.now();
        self.exact = Some((now + REST * (now - self.began), self.rough, used));
        match self.shares.largest().filter(|_| used > limit) {
            None => self.over(SAMPLE_SECONDS, None),
            Some(tag) => {
                self.exact = None;
                // Whoever is killed holds none any more; the next count finds the others'.
                self.disk.nameless.clear();
                let pids = self.shares.pids.remove(&tag).unwrap_or_default();
                self.over(SHORTEST_SECONDS, Some(Act::OutOfMemory(tag, pids)))
            }
        }
    }
}
