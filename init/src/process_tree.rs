//! Killing what belongs to a command, and all of a sandbox.
//!
//! Process 1 enters a fresh UTS namespace before each command, so that every descendant carries that namespace's number in
//! `/proc/PID/ns/uts` and, without capabilities, cannot leave it: the tag holds where sessions, parents and environments do not.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd, RawFd};

use crate::sys::{self, AT_FDCWD, O_DIRECTORY, O_RDONLY};

/// More processes than these make the first scan one of a sandbox that stands still.
const FEW: usize = 16;
/// With more than these nobody asks who was stopped before: asking would take longer than a hostile tree should be given. While hundreds
/// want to run process 1 has few milliseconds of a second.
const MANY: usize = 64;
pub const PAUSE_SECONDS: f64 = 0.001;
/// So long a tracer is given to take the death of what it traces, as debuggers do at once.
pub const TAKE_SECONDS: f64 = 0.1;

/// How a job goes on.
#[derive(Debug, PartialEq)]
pub enum Step {
    Again,
    After(f64),
    Done,
}

/// All other processes of a process namespace whose process 1 this is.
pub struct Processes {
    proc: OwnedFd,
    load: RefCell<Option<OwnedFd>>,
    /// The tags of children that have not become their programs: until then they hide them, as process 1 does.
    newborn: RefCell<HashMap<i32, u64>>,
    descent: Option<Descent>,
    standstill: RefCell<Standstill>,
    is_paused: Cell<bool>,
    /// Whether they were more than `MANY` when somebody counted them last.
    are_many: Cell<bool>,
}

/// Of processes, made piece by piece: of hundreds that all want to run, it takes a second of the clock to be told of each hundred.
pub struct List {
    pub found: Vec<i32>,
    directory: Option<OwnedFd>,
}

/// Everybody stands still, for as long as anyone here wants it.
#[derive(Default)]
struct Standstill {
    wanted: usize,
    /// Who did before, and does afterwards.
    stopped: HashSet<i32>,
}

/// Whether everybody has come to a standstill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Still {
    Yes,
    /// All but some that the kernel lets take no signal for now, as who waits for the child of a `vfork`.
    Nearly,
    No,
}

/// How a sandbox without namespaces knows its processes: by descent.
///
/// The supervisor is a child subreaper, so that whoever loses its parent comes to it, and so is the subreaper of each command (`subreaper`): a
/// command's tag is the number of its subreaper, and its processes are those that descend from there.
struct Descent {
    /// The kernel lets this process signal nothing but what is in the sandbox, so that a signal to everyone is just that.
    exact: bool,
    /// Those that have not been reaped.
    subreapers: RefCell<HashSet<i32>>,
}

/// A tag that no process carries.
pub const NOBODY: u64 = u64::MAX;
/// So many times processes that are found one by one are stopped, until no new ones are found.
const ROUNDS: usize = 200;
/// The same for a pause, at the end of which all are stopped in any case, and for all but one command, which is killed in one turn.
const PAUSE_ROUNDS: usize = 8;

impl Processes {
    pub fn new() -> io::Result<Processes> {
        let proc = sys::open_at(AT_FDCWD, b"/proc", O_RDONLY | O_DIRECTORY, 0)?;
        Ok(Processes::of(proc))
    }

    /// Of a directory that looks like /proc.
    pub fn of(proc: OwnedFd) -> Processes {
        Processes {
            proc,
            load: RefCell::new(None),
            newborn: RefCell::new(HashMap::new()),
            descent: None,
            standstill: RefCell::new(Standstill::default()),
            is_paused: Cell::new(false),
            are_many: Cell::new(false),
        }
    }

    /// All descendants of this process but the subreapers are the sandbox's.
    pub fn know_by_descent(&mut self, exact: bool) {
        self.descent = Some(Descent { exact, subreapers: RefCell::new(HashSet::new()) });
    }

    /// There is one subreaper more.
    pub fn has_subreaper(&self, pid: i32) {
        if let Some(descent) = &self.descent {
            descent.subreapers.borrow_mut().insert(pid);
        }
    }

    /// A child is gone; whether it was a subreaper.
    pub fn subreaper_is_gone(&self, pid: i32) -> bool {
        self.descent.as_ref().map_or(false, |descent| descent.subreapers.borrow_mut().remove(&pid))
    }

    /// Whether something says that a process with this tag lives, though none was found: a subreaper leaves when all that it keeps has gone,
    /// which no scan can tell as surely.
    fn lingers(&self, tag: u64) -> bool {
        let pid = tag as i32;
        let is_subreaper = self.descent.as_ref().map_or(false, |descent| descent.subreapers.borrow().contains(&pid));
        // Another command may have stopped it.
        is_subreaper && sys::send_signal(pid, sys::SIGCONT).is_ok()
    }

    /// Whether a process or thread is in the sandbox, and neither this process nor a subreaper; where descent tells.
    pub fn has(&self, pid: i32) -> bool {
        if self.descent.as_ref().map_or(true, |descent| descent.subreapers.borrow().contains(&pid)) {
            return false;
        }
        let own = sys::process_id();
        let mut above = self.parent(pid, true);
        while let Some(pid) = above.filter(|pid| *pid > 1 && *pid != own) {
            above = self.parent(pid, true);
        }
        above == Some(own)
    }

    /// The parent of a process; none if it is gone, or dead unless that is asked for.
    pub fn parent(&self, pid: i32, dead_too: bool) -> Option<i32> {
        let text = self.told(pid, "stat")?;
        let at = text.windows(2).rposition(|pair| pair == b") ")?;
        let fields: Vec<&[u8]> = text[at + 2..].split(|byte| *byte == b' ').collect();
        let number = |at: usize| fields.get(at).and_then(|word| number_of(word));
        // One whose first thread has ended looks dead, and has other threads.
        let is_dead = matches!(fields.first(), Some(&b"Z" | &b"X")) && number(17).unwrap_or(0) <= 1;
        if is_dead && !dead_too {
            return None;
        }
        number(1)
    }

    /// The parent of a process, if it waits for one to give its memory back, and how many of its threads do.
    pub fn lender(&self, pid: i32) -> Option<(i32, usize)> {
        let above = self.parent(pid, false).filter(|above| *above > 1)?;
        let waits = |place: &String| {
            let text = self.text(&format!("{place}/syscall")).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let mut words = text.split_whitespace();
            let call = words.next().and_then(|word| word.parse().ok());
            let flags = words.next().and_then(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
            call.zip(flags).map_or(false, |(call, flags)| sys::lends_memory(call, flags))
        };
        let count = self.places(above).iter().filter(|place| waits(place)).count();
        (count > 0).then_some((above, count))
    }

    /// The children of all threads of a process, dead ones that are not reaped included.
    pub fn children(&self, pid: i32) -> Vec<i32> {
        let mut threads = Vec::new();
        let path = format!("{pid}/task");
        if let Ok(listed) = sys::open_at(self.proc.as_raw_fd(), path.as_bytes(), O_RDONLY | O_DIRECTORY, 0) {
            while matches!(sys::read_names(&listed, &mut threads), Ok(true)) {}
        }
        let mut found = Vec::new();
        for (thread, _) in threads {
            let path = format!("{pid}/task/{}/children", String::from_utf8_lossy(&thread));
            if let Ok(fd) = sys::open_at(self.proc.as_raw_fd(), path.as_bytes(), O_RDONLY, 0) {
                let mut text = Vec::new();
                let mut piece = [0; 4096];
                while let Ok(count @ 1..) = sys::read_some(&fd, &mut piece) {
                    text.extend_from_slice(&piece[..count]);
                }
                found.extend(text.split(|byte| *byte == b' ').filter_map(number_of));
            }
        }
        found
    }

    /// All that descend from this process; some of those that are born or die meanwhile may be missing.
    fn descendants(&self) -> Vec<i32> {
        let mut found = Vec::new();
        let mut left = vec![sys::process_id()];
        while let Some(pid) = left.pop() {
            let born = self.children(pid);
            found.extend(&born);
            left.extend(born);
        }
        found
    }

    /// Signals everything else in this sandbox (0: only looks); true if there is anything, the unreaped included.
    pub fn signal_all(&self, number: i32) -> bool {
        let descent = match &self.descent {
            // Whoever lives descends from process 1, and an orphan becomes its child: without one there is nobody, which is asked first,
            // since for `kill(-1)` the kernel looks through every process of the machine.
            None => return sys::has_children() && sys::send_signal(-1, number).is_ok(),
            Some(descent) => descent,
        };
        if number == 0 {
            return sys::has_children();
        }
        if !descent.exact {
            return self.signal_one_by_one(number, descent);
        }
        if sys::send_signal(-1, number).is_err() {
            return false;
        }
        if number == sys::SIGSTOP {
            // They start nothing, and who is dead waits for them.
            signal_each(descent.subreapers.borrow().iter().copied(), sys::SIGCONT);
        }
        true
    }

    /// Who is to be killed is stopped first, so that nobody forks meanwhile.
    fn signal_one_by_one(&self, number: i32, descent: &Descent) -> bool {
        let mut seen: HashSet<i32> = HashSet::new();
        for _ in 0..ROUNDS {
            let subreapers = descent.subreapers.borrow();
            let new: Vec<i32> =
                self.descendants().into_iter().filter(|pid| !subreapers.contains(pid) && !seen.contains(pid)).collect();
            if new.is_empty() {
                break;
            }
            signal_each(new.iter().copied(), if number == sys::SIGKILL { sys::SIGSTOP } else { number });
            seen.extend(new);
        }
        if number == sys::SIGKILL {
            signal_each(seen.iter().copied(), number);
        }
        !seen.is_empty()
    }

    /// A child has begun.
    pub fn is_being_born(&self, pid: i32, tag: u64) {
        self.newborn.borrow_mut().insert(pid, tag);
    }

    /// A child is the program, or dead.
    pub fn is_born(&self, pid: i32) {
        self.newborn.borrow_mut().remove(&pid);
    }

    /// The number of a namespace. As text: following the link would have the kernel make a file for it.
    pub fn namespace(&self, path: &str) -> io::Result<u64> {
        let link = sys::read_link(self.proc.as_raw_fd(), path.as_bytes())?;
        let text = String::from_utf8_lossy(&link);
        let number = text.split('[').nth(1).and_then(|rest| rest.trim_end_matches(']').parse().ok());
        number.ok_or_else(|| io::Error::from_raw_os_error(sys::EINVAL))
    }

    /// Enters a fresh namespace, whose number tags what is started from now on.
    pub fn new_tag(&self) -> io::Result<u64> {
        sys::enter_fresh_uts()?;
        self.namespace("thread-self/ns/uts")
    }

    /// Their numbers, in no order; those that are dead and not reaped yet may be among them.
    pub fn all(&self) -> io::Result<Vec<i32>> {
        self.first(usize::MAX)
    }

    /// As `all`; where they are more than so many, only more than so many of them.
    fn first(&self, most: usize) -> io::Result<Vec<i32>> {
        let mut list = self.list()?;
        while list.found.len() <= most && self.list_on(&mut list)? {}
        Ok(list.found)
    }

    /// Begins a list of what `all` finds.
    pub fn list(&self) -> io::Result<List> {
        if let Some(descent) = &self.descent {
            let subreapers = descent.subreapers.borrow();
            let found = self.descendants().into_iter().filter(|pid| !subreapers.contains(pid)).collect();
            return Ok(List { found, directory: None });
        }
        let directory = sys::open_at(self.proc.as_raw_fd(), b".", O_RDONLY | O_DIRECTORY, 0)?;
        Ok(List { found: Vec::new(), directory: Some(directory) })
    }

    /// Adds some more; whether there may be others.
    pub fn list_on(&self, list: &mut List) -> io::Result<bool> {
        let mut names = Vec::new();
        let more = match &list.directory {
            // Each takes the kernel so long that a share of the processor among hundreds is over after a few dozen.
            Some(directory) if self.are_many.get() => sys::read_some_names(directory, &mut names, &mut [0; 512])?,
            Some(directory) => sys::read_names(directory, &mut names)?,
            None => false,
        };
        let own = sys::process_id();
        list.found.extend(names.iter().filter_map(|(name, _)| number_of(name)).filter(|pid| *pid != own));
        if list.found.len() > MANY {
            self.are_many.set(true); // Whoever waits for the rest may wait for long.
        }
        Ok(more)
    }

    /// They have been counted.
    pub fn are(&self, count: usize) {
        self.are_many.set(count > MANY);
    }

    /// The number that was given out last, to a process or a thread: unchanged, nobody was born meanwhile.
    pub fn newest(&self) -> io::Result<Vec<u8>> {
        let mut load = self.load.borrow_mut();
        let load = match &mut *load {
            Some(load) => load,
            none => none.insert(sys::open_at(self.proc.as_raw_fd(), b"loadavg", O_RDONLY, 0)?),
        };
        let mut text = [0; 128];
        let count = sys::read_from(load, &mut text, 0)?;
        Ok(text[..count].rsplit(|byte| *byte == b' ').next().unwrap_or(b"").to_vec())
    }

    /// Whether nobody was born since that number was the newest. By descent nobody can tell: the machine's others are born, too.
    fn is_newest(&self, newest: &[u8]) -> io::Result<bool> {
        Ok(self.descent.is_some() || self.newest()? == newest)
    }

    /// Whether a living process carries a tag. A program that its own user may not read hides that even from process 1; only
    /// hostile code has a reason to, so it dies with the first tree that is killed.
    fn carries(&self, pid: i32, tag: u64, others: bool) -> bool {
        match self.tag_of(pid) {
            Ok(found) => found.map_or(false, |found| (found == tag) != others),
            Err(_) => true,
        }
    }

    /// The directory of /proc.
    pub fn directory(&self) -> RawFd {
        self.proc.as_raw_fd()
    }

    /// The tag that a process carries; `None` of one that is dead. Once its first thread has ended, only its others show it.
    pub fn tag_of(&self, pid: i32) -> io::Result<Option<u64>> {
        if let Some(tag) = self.newborn.borrow().get(&pid) {
            return Ok(Some(*tag));
        }
        if let Some(descent) = &self.descent {
            return self.subreaper_of(pid, descent);
        }
        let proc = self.proc.as_raw_fd();
        let look = |place: String| match sys::stat_path(proc, format!("{place}/ns/uts").as_bytes()) {
            Ok(found) => Ok(Some(found.inode)),
            Err(error) if matches!(sys::number_of(&error), sys::ENOENT | sys::ESRCH) => Ok(None),
            Err(error) => Err(error),
        };
        if let Some(tag) = look(pid.to_string())? {
            return Ok(Some(tag));
        }
        let mut threads = Vec::new();
        if let Ok(listed) = sys::open_at(proc, format!("{pid}/task").as_bytes(), O_RDONLY | O_DIRECTORY, 0) {
            while matches!(sys::read_names(&listed, &mut threads), Ok(true)) {}
        }
        for (name, _) in threads {
            if let Some(tag) = look(format!("{pid}/task/{}", String::from_utf8_lossy(&name)))? {
                return Ok(Some(tag));
            }
        }
        Ok(None)
    }

    /// The subreaper that a process descends from. Who has killed a subreaper belongs to nobody, which counts as hiding.
    fn subreaper_of(&self, pid: i32, descent: &Descent) -> io::Result<Option<u64>> {
        let own = sys::process_id();
        let mut pid = pid;
        let mut above = match self.parent(pid, false) {
            Some(above) => above,
            None => return Ok(None),
        };
        while above != own {
            pid = above;
            above = match self.parent(pid, true) {
                Some(above) if above > 1 || above == own => above,
                // Somebody on the way up died just now; whoever is meant has another parent by the next look.
                _ => return Ok(None),
            };
        }
        if descent.subreapers.borrow().contains(&pid) {
            Ok(Some(pid as u64))
        } else {
            Err(io::Error::from_raw_os_error(sys::EPERM))
        }
    }

    /// Where /proc tells of a process: once its first thread has ended, only its others show what it has.
    pub fn places(&self, pid: i32) -> Vec<String> {
        let mut threads = Vec::new();
        let path = format!("{pid}/task");
        if let Ok(listed) = sys::open_at(self.proc.as_raw_fd(), path.as_bytes(), O_RDONLY | O_DIRECTORY, 0) {
            while matches!(sys::read_names(&listed, &mut threads), Ok(true)) {}
        }
        let others = threads.iter().filter_map(|(name, _)| number_of(name)).filter(|thread| *thread != pid);
        std::iter::once(pid.to_string()).chain(others.map(|thread| format!("{pid}/task/{thread}"))).collect()
    }

    /// A file of a process, as far as it fits.
    pub fn told(&self, pid: i32, name: &str) -> Option<Vec<u8>> {
        self.text(&format!("{pid}/{name}"))
    }

    /// A file of /proc, as far as it fits.
    pub fn text(&self, path: &str) -> Option<Vec<u8>> {
        let fd = sys::open_at(self.proc.as_raw_fd(), path.as_bytes(), O_RDONLY, 0).ok()?;
        let mut text = vec![0; 4096];
        let count = sys::read_some(&fd, &mut text).ok()?;
        text.truncate(count);
        Some(text)
    }

    /// Whether a process stands still, by a signal or for its tracer.
    pub fn is_stopped(&self, pid: i32) -> bool {
        self.told(pid, "stat").map_or(false, |text| matches!(state_in(&text), Some(b'T' | b't')))
    }

    /// Whether the kernel is still ending a process: it carries no tag any more, and whoever counts or lists processes still finds it.
    fn is_dying(&self, pid: i32) -> bool {
        let state = self.told(pid, "stat").and_then(|text| state_in(&text));
        state.map_or(false, |state| !matches!(state, b'Z' | b'X')) && matches!(self.tag_of(pid), Ok(None))
    }

    /// Whether it stands still by a signal. Who stands for its tracer goes on by itself, and would not after a signal of ours.
    fn is_stopped_by_signal(&self, pid: i32) -> bool {
        self.told(pid, "stat").map_or(false, |text| state_in(&text) == Some(b'T'))
    }

    /// The thread that traces a process, dead or alive, if it is none of this process; and whether that is dead.
    fn tracer_of(&self, pid: i32) -> (bool, Option<i32>) {
        let text = self.told(pid, "status").unwrap_or_default();
        let field = |name: &[u8]| {
            let line = text.split(|byte| *byte == b'\n').find(|line| line.starts_with(name))?;
            Some(String::from_utf8_lossy(&line[name.len()..]).trim().to_owned())
        };
        let dead = field(b"State:").map_or(false, |state| state.starts_with('Z'));
        let tracer = field(b"TracerPid:").and_then(|tracer| tracer.parse().ok()).unwrap_or(0);
        (dead, (tracer != 0 && tracer != sys::process_id()).then_some(tracer))
    }

    pub fn is_traced(&self, pid: i32) -> bool {
        self.tracer_of(pid).1.is_some()
    }

    pub fn kill_tracer(&self, pid: i32) {
        if let (_, Some(tracer)) = self.tracer_of(pid) {
            signal_each([tracer], sys::SIGKILL);
        }
    }

    /// Offers a command where the machine runs out of memory: before supervisors, servers and trainers.
    pub fn offer(&self, pid: i32, badness: &[u8]) {
        let path = format!("{pid}/oom_score_adj");
        if let Ok(fd) = sys::open_at(self.proc.as_raw_fd(), path.as_bytes(), sys::O_WRONLY, 0) {
            // Where it fails the kernel chooses by itself.
            drop(sys::write_some(&fd, badness));
        }
    }

    fn kill_round(&self, tag: u64, candidates: &[i32], others: bool) -> HashSet<i32> {
        let hits: HashSet<i32> = candidates.iter().copied().filter(|pid| self.carries(*pid, tag, others)).collect();
        signal_each(hits.iter().copied(), sys::SIGKILL);
        hits
    }

    /// Has everyone stand still, until as many have been given up again by `thaw`.
    ///
    /// A signal to everyone is one step for the kernel: a fork under way either fails and sees it, or hands it to the child. So nothing is
    /// missed by a scan meanwhile, at the price of a standstill of a few milliseconds for the other commands.
    pub fn freeze(&self, before: &[i32]) {
        let mut standstill = self.standstill.borrow_mut();
        if standstill.wanted == 0 && before.len() <= MANY {
            standstill.stopped = before.iter().copied().filter(|pid| self.is_stopped_by_signal(*pid)).collect();
        }
        standstill.wanted += 1;
        self.signal_all(sys::SIGSTOP);
    }

    /// Whoever stops this one has no say: it goes on with the others.
    pub fn goes_on(&self, pid: i32) {
        self.standstill.borrow_mut().stopped.remove(&pid);
    }

    /// Has them go on, if nobody else wants them to stand still. What somebody had stopped before stays stopped. Children go on before
    /// their parents: a shell's job control must not see them stopped.
    pub fn thaw(&self, everyone: HashSet<i32>) {
        let mut standstill = self.standstill.borrow_mut();
        standstill.wanted = standstill.wanted.saturating_sub(1);
        if standstill.wanted > 0 {
            return;
        }
        let stopped = std::mem::take(&mut standstill.stopped);
        let mut going: Vec<i32> = everyone.difference(&stopped).copied().collect();
        going.sort_unstable_by(|one, other| other.cmp(one));
        signal_each(going, sys::SIGCONT);
    }

    /// Has everyone stand still for longer, as `freeze`; what is started meanwhile stops before it is its program.
    ///
    /// Who was stopped before is found out exactly, unless they fork faster than they are looked at: the last of them to be stopped
    /// has seen all others stand still.
    pub fn pause(&self) -> io::Result<()> {
        let mut ours: HashSet<i32> = HashSet::new();
        let mut others: HashSet<i32> = HashSet::new();
        if self.standstill.borrow().wanted == 0 {
            for _ in 0..PAUSE_ROUNDS {
                let (stopped, running): (Vec<i32>, Vec<i32>) = self
                    .all()?
                    .into_iter()
                    .filter(|pid| !ours.contains(pid))
                    .partition(|pid| self.is_stopped_by_signal(*pid));
                others = stopped.into_iter().collect();
                if running.is_empty() {
                    break;
                }
                signal_each(running.iter().copied(), sys::SIGSTOP);
                ours.extend(running);
            }
        }
        let mut standstill = self.standstill.borrow_mut();
        if standstill.wanted == 0 {
            standstill.stopped = others;
        }
        standstill.wanted += 1;
        self.is_paused.set(true);
        self.signal_all(sys::SIGSTOP);
        Ok(())
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused.get()
    }

    /// Whether the pause has come to everybody. Who runs is stopped again: the kernel has some go on, as when their tracer dies.
    pub fn keep_still(&self) -> io::Result<Still> {
        let mut worst = Still::Yes;
        for pid in self.all()? {
            let still = self.stillness_of(pid);
            if still == Still::No && !self.newborn.borrow().contains_key(&pid) {
                drop(sys::send_signal(pid, sys::SIGSTOP));
            }
            worst = worst.max(still);
        }
        Ok(worst)
    }

    fn stillness_of(&self, pid: i32) -> Still {
        let stats = self.places(pid).into_iter().filter_map(|place| self.text(&format!("{place}/stat")));
        let of_thread = |text: Vec<u8>| match state_in(&text) {
            None | Some(b'T' | b't' | b'Z' | b'X') => Still::Yes,
            Some(b'D') => Still::Nearly,
            Some(_) => Still::No,
        };
        stats.map(of_thread).max().unwrap_or(Still::Yes)
    }

    /// The pause is over.
    pub fn resume(&self) {
        self.is_paused.set(false);
        match self.all() {
            Ok(everyone) => self.thaw(everyone.into_iter().collect()),
            Err(_) => {
                // Someone inside took our descriptors away: better that too many go on than none.
                self.thaw(HashSet::new());
                self.signal_all(sys::SIGCONT);
            }
        }
    }

    /// A round in which nobody can fork, unless somebody has them go on just then.
    fn kill_frozen(&self, tag: u64, before: &[i32], others: bool) -> io::Result<Round> {
        self.freeze(before);
        let mut spared: HashSet<i32> = before.iter().copied().collect();
        let round = self.newest().and_then(|newest| {
            let everyone = self.all()?;
            let hits = self.kill_round(tag, &everyone, others);
            spared.extend(everyone);
            spared.retain(|pid| !hits.contains(pid));
            Ok(Round { hits, is_whole: self.is_newest(&newest)? })
        });
        self.thaw(spared);
        round
    }
}

/// What came of a scan.
struct Round {
    /// Who was killed.
    hits: HashSet<i32>,
    /// Whether nobody was born meanwhile: who is gone before it is looked at, and leaves a child, is on no list with that.
    is_whole: bool,
}

fn number_of(name: &[u8]) -> Option<i32> {
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// The state in a line of `/proc/PID/stat`, behind a name that may hold anything.
fn state_in(text: &[u8]) -> Option<u8> {
    let at = text.windows(2).rposition(|pair| pair == b") ")?;
    text.get(at + 2).copied()
}

fn signal_each(pids: impl IntoIterator<Item = i32>, number: i32) {
    for pid in pids {
        // Who is gone needs none.
        drop(sys::send_signal(pid, number));
    }
}

/// Kills a tree; it is over when a whole scan has found nothing alive with the tag, and nothing that is dying.
///
/// A tree that forks on is faster than a scan, and many sessions leave process 1 a small share of the processor. So the scan is
/// made while the sandbox stands still where there are many processes, or newcomers since the last, or anybody was born meanwhile.
pub struct KillTagged {
    tag: u64,
    killed: HashSet<i32>,
    newcomers: bool,
    has_lingered: bool,
}

impl KillTagged {
    pub fn new(tag: u64) -> KillTagged {
        KillTagged { tag, killed: HashSet::new(), newcomers: false, has_lingered: false }
    }

    pub fn step(&mut self, processes: &Processes) -> Step {
        let round = processes.newest().and_then(|newest| {
            let may_freeze = self.newcomers || self.killed.is_empty();
            // Of many nobody asks who they are before they stand still.
            let are_many = may_freeze && processes.are_many.get();
            let before =
                if are_many { Vec::new() } else { processes.first(if may_freeze { MANY } else { usize::MAX })? };
            let frozen = self.newcomers || are_many || (self.killed.is_empty() && before.len() > FEW);
            let round = if frozen {
                processes.kill_frozen(self.tag, &before, false)?
            } else {
                let hits = processes.kill_round(self.tag, &before, false);
                Round { hits, is_whole: processes.is_newest(&newest)? }
            };
            Ok((frozen, round))
        });
        let (frozen, Round { hits, is_whole }) = match round {
            Ok(round) => round,
            Err(_) => {
                // Someone inside took our descriptors away by prlimit, so that /proc cannot be listed. Nothing may outlive its
                // time because of that: the other commands go too.
                processes.signal_all(sys::SIGKILL);
                return Step::Done;
            }
        };
        if hits.is_empty() {
            if processes.lingers(self.tag) {
                // The first time it may be about to leave.
                self.newcomers = std::mem::replace(&mut self.has_lingered, true);
            } else if !is_whole {
                self.newcomers = true;
            } else if !self.killed.iter().any(|pid| processes.is_dying(*pid)) {
                return Step::Done;
            }
            return Step::After(PAUSE_SECONDS);
        }
        let dying = hits.is_subset(&self.killed);
        self.newcomers = !self.killed.is_empty() && !dying;
        self.killed.extend(hits);
        if frozen || dying {
            // All are dying, and need the processor for it more than we do.
            Step::After(PAUSE_SECONDS)
        } else {
            Step::Again
        }
    }
}

/// Kills everything but this process and what carries a tag; it is over when all are gone.
///
/// One round is enough, since nobody can fork meanwhile; a command that begins later is none of those meant.
pub struct KillOthers {
    tag: Option<u64>,
    killed: Option<HashSet<i32>>,
}

impl KillOthers {
    pub fn new(tag: Option<u64>) -> KillOthers {
        KillOthers { tag, killed: None }
    }

    pub fn step(&mut self, processes: &Processes) -> Step {
        match self.round(processes) {
            Ok(true) => Step::After(PAUSE_SECONDS),
            Ok(false) => Step::Done,
            Err(_) => {
                processes.signal_all(sys::SIGKILL); // As above.
                Step::Done
            }
        }
    }

    /// Whether any lives on.
    fn round(&mut self, processes: &Processes) -> io::Result<bool> {
        if self.killed.is_none() {
            self.killed = Some(match self.tag {
                Some(tag) => {
                    let mut killed = HashSet::new();
                    for _ in 0..PAUSE_ROUNDS {
                        let round = processes.kill_frozen(tag, &processes.all()?, true)?;
                        killed.extend(round.hits);
                        if round.is_whole {
                            break;
                        }
                    }
                    killed
                }
                None => {
                    processes.signal_all(sys::SIGKILL);
                    // Whoever is there now is dying, also one that was born just before.
                    processes.all()?.into_iter().collect()
                }
            });
        }
        let killed = self.killed.get_or_insert_with(HashSet::new);
        Ok(processes.all()?.into_iter().any(|pid| {
            // Of one that is dead its tracer is told first, and may keep that to itself.
            killed.contains(&pid) && !matches!(processes.tracer_of(pid), (true, Some(_)))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_behind_any_name() {
        assert_eq!(state_in(b"7 (sh) S 1 7"), Some(b'S'));
        assert_eq!(state_in(b"7 (a) T (b) t 1"), Some(b't'));
        for text in [&b""[..], b"7", b"7 (sh", b"7 (sh) "] {
            assert_eq!(state_in(text), None);
        }
    }

    #[test]
    fn it_lists_others_and_not_itself() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let processes = Processes::new().unwrap();
        let all = processes.all().unwrap();
        let pid = child.id() as i32;
        assert!(all.contains(&pid) && !all.contains(&sys::process_id()));
        assert!(processes.tag_of(pid).unwrap().is_some() && !processes.is_stopped(pid) && !processes.is_traced(pid));
        let own = processes.namespace("self/ns/uts").unwrap();
        assert_eq!(processes.tag_of(pid).unwrap(), Some(own));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(processes.tag_of(pid).unwrap(), None);
    }
}
