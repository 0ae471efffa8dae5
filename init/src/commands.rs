//! The table of commands. It owns "at most once": an id that ran is never run again.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::accounts::{self, Account};
use crate::cases::Cases;
use crate::command::{Command, Listener, Spec, Subscriber, LINGER_SECONDS};
use crate::errors::{reason_of, Refused, Variables};
use crate::event_loop::{Call, EventLoop, Token};
use crate::frames;
use crate::idempotency::newest;
use crate::input::{Answers, Asker, Input};
use crate::json::{object, Value};
use crate::limits::cgroup::Group;
use crate::output::{Output, Took};
use crate::paths::{self, join};
use crate::process_tree::Processes;
use crate::programs::Programs;
use crate::spawn::{self, Birthplace, CaseEnds, Ends, Failure, Spawned, Streams};
use crate::subreaper::Subreapers;
use crate::successive::{Next, GATHERED_BYTES};
use crate::sys::{self, Status, Usage, AT_FDCWD, O_DIRECTORY, O_RDONLY};

/// Ids of finished and confirmed commands that are still refused a second run, the newest of them.
const REMEMBERED: usize = 16_384;
const REAP_A_TURN: usize = 256;
/// Commands that have shared memory at a time: each is a descriptor.
const MOST_SHARING: usize = 64;
const HELLO_EXECS: usize = 4096;
/// What the results may take that a sandbox leaves behind, the newest of them.
const LEFT_BYTES: usize = 32 << 20;
/// Added to a command's for the kernel's choice of whom to kill, in thousandths of the machine's memory.
const BADNESS: i32 = 500;
/// A terminal gives at most 4 KiB at a time.
const PIECES_A_TURN: usize = 16;
const SCREEN_SECONDS: f64 = 0.01;

/// What others have to be told.
#[derive(Default)]
pub struct News {
    /// To writers of input.
    pub answers: Answers,
    /// Commands, by number, that may have something to send.
    pub ready: Vec<u64>,
    /// The main command is over: its code, and whether the memory limit ended it.
    pub main_exit: Option<(i32, bool)>,
    /// Commands, by number, of which another process follows once nothing of the last one lives.
    pub renewals: Vec<u64>,
    /// Whether any process has started.
    pub started: bool,
    /// A subreaper was killed: what it kept has to go.
    pub lost_subreaper: bool,
    /// Commands, by id, of which all goes for the memory that they have taken.
    pub kills: Vec<Vec<u8>>,
}

/// A process with its tag, or why there is none.
type Launched = Result<(u64, Spawned), Failure>;

pub struct Commands {
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    pub working_dir: Vec<u8>,
    /// Who commands are that do not say it; empty is root.
    pub user: Vec<u8>,
    pub nice: i32,
    pub open_files: Option<u64>,
    /// No command starts any more, and one that a signal ends gets no result: the sandbox ended it.
    pub ending: bool,
    pub news: News,
    /// In which the kernel keeps the limit of memory.
    pub group: Option<Group>,
    /// Where commands are born.
    pub birth: Birthplace,
    /// Start the commands and tell of their ends, where there are no namespaces to tag them by.
    pub subreapers: Option<Subreapers>,
    unmade: Option<io::Error>,
    null: OwnedFd,
    terminals: Option<OwnedFd>,
    badness: Vec<u8>,
    by_number: BTreeMap<u64, Command>,
    by_id: HashMap<Vec<u8>, u64>,
    by_pid: HashMap<i32, u64>,
    by_tag: HashMap<u64, Vec<u8>>,
    past: HashMap<Vec<u8>, Option<u64>>,
    past_in_order: VecDeque<Vec<u8>>,
    /// Pipes of children that outlived their command: read and thrown away, so that these neither block nor die of SIGPIPE.
    drains: HashMap<u64, OwnedFd>,
    /// Those that memory is shared with, and may have it yet.
    sharing: Vec<u64>,
    count: u64,
    last_end: f64,
}

impl Commands {
    pub fn new(looper: &EventLoop) -> io::Result<Commands> {
        Ok(Commands {
            environment: Vec::new(),
            working_dir: b"/workspace".to_vec(),
            user: Vec::new(),
            nice: 0,
            open_files: None,
            ending: false,
            news: News::default(),
            group: None,
            birth: Birthplace::default(),
            subreapers: None,
            unmade: None,
            null: sys::open_at(AT_FDCWD, b"/dev/null", O_RDONLY, 0)?,
            terminals: sys::open_at(AT_FDCWD, b"/dev/pts", O_RDONLY | O_DIRECTORY, 0).ok(),
            badness: badness(),
            by_number: BTreeMap::new(),
            by_id: HashMap::new(),
            by_pid: HashMap::new(),
            by_tag: HashMap::new(),
            past: HashMap::new(),
            past_in_order: VecDeque::new(),
            drains: HashMap::new(),
            sharing: Vec::new(),
            count: 0,
            last_end: looper.now(),
        })
    }

    /// What HELLO says of them.
    pub fn summary(&self) -> Value {
        let skipped = self.by_number.len().saturating_sub(HELLO_EXECS);
        let told = |command: &Command| {
            let state = if command.result.is_none() { "running" } else { "ended" };
            let told = object([
                ("state", state.into()),
                ("stdout", command.outputs[0].end().into()),
                ("stderr", command.outputs[1].end().into()),
                ("main", command.main.into()),
            ]);
            (command.exec_id.clone(), told)
        };
        Value::Object(self.by_number.values().skip(skipped).map(told).collect())
    }

    pub fn get(&mut self, number: u64) -> Option<&mut Command> {
        self.by_number.get_mut(&number)
    }

    /// A command on record.
    pub fn find(&mut self, exec_id: &[u8]) -> Result<&mut Command, Refused> {
        let number = self.by_id.get(exec_id).copied();
        number.and_then(|number| self.by_number.get_mut(&number)).ok_or_else(|| Refused::unknown_exec(exec_id))
    }

    // -- starting ---------------------------------------------------------------------------------------------------------

    /// Commands start in this directory; it is made if it is not there.
    pub fn work_in(&mut self, path: &[u8]) {
        self.working_dir = path.to_vec();
        self.unmade = make_whole_path(path).err();
    }

    /// Where a command starts.
    fn directory(&self, spec: &Spec) -> Result<Vec<u8>, Refused> {
        if !spec.working_dir.is_empty() {
            return Ok(join(&self.working_dir, &spec.working_dir));
        }
        if let Some(error) = &self.unmade {
            let number = sys::number_of(error);
            let why = if number == sys::EEXIST { "Not a directory".to_owned() } else { sys::describe(number) };
            let message = format!("working_dir cannot be made: {why}");
            return Err(Refused::file(&self.working_dir, reason_of(number), message));
        }
        Ok(self.working_dir.clone())
    }

    /// The number of a command, which is started if it is new; `None`: the sandbox ends, and ENDED answers every channel.
    ///
    /// `spec` comes with what tells it from others; without one only a command on record is meant.
    ///
    /// # Errors
    /// It is unknown, in conflict, or its directory is missing.
    pub fn on_record(
        &mut self,
        exec_id: &[u8],
        spec: Option<(&Value, u64)>,
        looper: &mut EventLoop,
        processes: &Processes,
    ) -> Result<Option<u64>, Refused> {
        match (self.by_id.get(exec_id), spec) {
            (Some(number), Some((_, fingerprint))) => {
                if self.by_number.get(number).map_or(true, |command| command.fingerprint != fingerprint) {
                    let name = String::from_utf8_lossy(exec_id);
                    let message = format!("'{name}' was used before for another command");
                    return Err(Refused::new("REQUEST_ID_CONFLICT", "request_id_conflict", message));
                }
                Ok(Some(*number))
            }
            (Some(number), None) => Ok(Some(*number)),
            (None, _) if self.ending => Ok(None),
            (None, Some((value, fingerprint))) if !self.past.contains_key(exec_id) => {
                let spec = Spec::read(value, fingerprint)?;
                if spec.exec_id != exec_id {
                    return Err(Refused::invalid("a malformed request: two ids"));
                }
                self.start(spec, looper, processes).map(Some)
            }
            (None, _) => Err(Refused::unknown_exec(exec_id)),
        }
    }

    /// Streams a command to a channel.
    pub fn listen(&mut self, number: u64, to: &mut Listener<'_>, looper: &mut EventLoop) {
        let Commands { sharing, by_number, .. } = self;
        sharing.retain(|one| by_number.get(one).map_or(false, |command| command.outputs[0].has_memory()));
        let memory = to.memory.take().filter(|_| self.sharing.len() < MOST_SHARING);
        if let Some(command) = self.by_number.get_mut(&number) {
            let accepted = object([("exec_id", Value::Text(command.exec_id.clone()))]);
            to.tell(frames::ACCEPTED, &accepted, looper);
            to.tell(frames::STARTED, &object([]), looper);
            if let Some(memory) = memory.filter(|_| command.may_use_memory()) {
                command.outputs[0].share(memory);
                self.sharing.push(number);
                to.shares_memory = true;
            }
            let subscriber = Subscriber::new(command, to);
            command.listen(Some(subscriber), looper);
            self.news.ready.push(number);
        }
    }

    /// Whether it is unknown so far.
    pub fn is_new(&self, exec_id: &[u8]) -> bool {
        !self.by_id.contains_key(exec_id)
    }

    /// The reader of a command may have confirmed something in shared memory.
    pub fn look_in_memory(&mut self, number: u64, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number) {
            command.outputs[0].look_again(looper);
            self.moved(number, looper);
        }
    }

    /// Little lies in shared memory, and has waited for more.
    pub fn tell_of_little(&mut self, number: u64) {
        if let Some(to) = self.by_number.get_mut(&number).and_then(|command| command.subscriber.as_mut()) {
            to.moment_over();
            self.news.ready.push(number);
        }
    }

    fn start(&mut self, mut spec: Spec, looper: &mut EventLoop, processes: &Processes) -> Result<u64, Refused> {
        let directory = self.directory(&spec)?;
        let (cases, programs) = (spec.cases.take(), spec.programs.take());
        let launched = match (&cases, &programs) {
            (_, Some(_)) => {
                // Each of its programs, the first too, starts when its input has come.
                let entered = spawn::enter(&directory, b"");
                sys::leave_directory();
                if entered?.is_some() {
                    return Err(Refused::file(&directory, "file", "nothing more can be opened"));
                }
                None
            }
            (Some(cases), _) => {
                let streams = Streams::Cases { reports: cases.reports };
                Some(self.launch(&spec, &directory, &spec.command, streams, looper, processes)?)
            }
            _ => {
                let streams = match spec.terminal {
                    Some((width, height)) => Streams::Terminal { width, height },
                    None => Streams::Pipes { stdin: spec.stdin, given: None },
                };
                Some(self.launch(&spec, &directory, &spec.command, streams, looper, processes)?)
            }
        };
        self.count += 1;
        let number = self.count;
        self.by_id.insert(spec.exec_id.clone(), number);
        let (input, timeout) = (spec.input.take(), spec.timeout_seconds);
        match launched {
            Some(Err(failure)) => {
                let mut command = Command::new(number, &spec, Ends::none(), looper);
                command.fail(failure, looper);
                self.by_number.insert(number, command);
                self.is_over(number, looper);
                return Ok(number);
            }
            Some(Ok((tag, mut spawned))) => {
                let case_ends = spawned.ends.cases.take();
                let ends = std::mem::replace(&mut spawned.ends, Ends::none());
                let mut command = Command::new(number, &spec, ends, looper);
                command.cases = cases;
                if case_ends.is_some() {
                    command.input.kept = Some(Vec::new());
                    command.spec = Some(Box::new(spec));
                }
                self.by_number.insert(number, command);
                self.runs(number, tag, spawned, case_ends, looper, processes);
            }
            None => {
                let mut command = Command::new(number, &spec, Ends::none(), looper);
                command.begin_series();
                command.programs = programs;
                command.spec = Some(Box::new(spec));
                if let Some(programs) = &mut command.programs {
                    self.news.answers.extend(programs.begin());
                }
                self.by_number.insert(number, command);
                self.news.renewals.push(number);
            }
        }
        if let Some(input) = input {
            self.write_input(number, 0, input, true, None, looper);
        }
        if let Some(command) = self.by_number.get_mut(&number) {
            match command.programs.take() {
                Some(mut programs) => {
                    programs.limit(timeout, command, looper);
                    command.programs = Some(programs);
                }
                None => command.limit = timeout.map(|seconds| looper.after(seconds, Call::TooLate(number))),
            }
        }
        self.rest_input(number, looper);
        Ok(number)
    }

    /// Starts a process in a directory.
    ///
    /// # Errors
    /// The directory is not there. That the program cannot be started is a result.
    fn launch(
        &mut self,
        spec: &Spec,
        directory: &[u8],
        words: &[Vec<u8>],
        streams: Streams<'_>,
        looper: &mut EventLoop,
        processes: &Processes,
    ) -> Result<Launched, Refused> {
        let name: &[u8] = words.first().map_or(b"", Vec::as_slice);
        let account = accounts::find(if spec.user.is_empty() { &self.user } else { &spec.user })?;
        let account = account.as_ref();
        let launched = match spawn::enter(directory, name)? {
            Some(failure) => Err(failure),
            None => match self.launch_here(spec, words, account, streams, processes) {
                Err(failure) if failure.for_now => {
                    while self.reap(looper, processes) {}
                    self.launch_here(spec, words, account, streams, processes)
                }
                launched => launched,
            },
        };
        sys::leave_directory();
        Ok(launched)
    }

    fn launch_here(
        &self,
        spec: &Spec,
        words: &[Vec<u8>],
        account: Option<&Account>,
        streams: Streams<'_>,
        processes: &Processes,
    ) -> Launched {
        let name: &[u8] = words.first().map_or(b"", Vec::as_slice);
        let tag = match &self.subreapers {
            Some(_) => 0, // Its subreaper tags it.
            None => processes.new_tag().map_err(|error| {
                let why = sys::describe(sys::number_of(&error));
                Failure::new(126, name, format!("no namespace to tag it with: {why}"))
            })?,
        };
        let mut environment = Variables::new();
        if spec.terminal.is_some() {
            environment.push((b"TERM".to_vec(), b"xterm-256color".to_vec()));
        }
        environment.extend(self.environment.iter().map(|variable| of_account(variable, account)));
        environment.extend(spec.environment.iter().cloned());
        let environment = last_of_each(environment);
        let by = spawn::By {
            null: &self.null,
            terminals: self.terminals.as_ref(),
            open_files: self.open_files,
            nice: self.nice,
            birth: &self.birth,
            subreapers: self.subreapers.as_ref(),
            processes,
            account,
        };
        spawn::spawn(words, &environment, streams, by).map(|spawned| (tag, spawned))
    }

    /// A process of a command runs.
    fn runs(
        &mut self,
        number: u64,
        tag: u64,
        spawned: Spawned,
        case_ends: Option<CaseEnds>,
        looper: &mut EventLoop,
        processes: &Processes,
    ) {
        let Spawned { pid, ends, report, subreaper, program, name } = spawned;
        let tag = subreaper.map_or(tag, |subreaper| subreaper as u64);
        let command = match self.by_number.get_mut(&number) {
            Some(command) => command,
            None => return,
        };
        match subreaper {
            Some(subreaper) => {
                processes.has_subreaper(subreaper);
                command.begin_kept(pid, tag, report, looper);
            }
            None => {
                processes.is_being_born(pid, tag);
                command.begin(pid, tag, report, program, name, looper);
                self.by_pid.insert(pid, number);
            }
        }
        // A number comes back only when its namespace is gone: whoever had it before has no process left.
        self.by_tag.insert(tag, command.exec_id.clone());
        if let (Some(mut cases), Some(case_ends)) = (command.cases.take(), case_ends) {
            cases.started(case_ends, command, looper);
            command.cases = Some(cases);
        }
        if let Some(mut programs) = command.programs.take() {
            programs.started(ends, command, looper);
            command.programs = Some(programs);
        }
        if subreaper.is_some() {
            processes.offer(pid, &self.badness);
        }
        self.news.started = true;
    }

    // -- several processes, one after the other ---------------------------------------------------------------------------

    /// Takes bytes of a command's input.
    pub fn write_input(
        &mut self,
        number: u64,
        offset: u64,
        data: Vec<u8>,
        eof: bool,
        asker: Asker,
        looper: &mut EventLoop,
    ) {
        let command = match self.by_number.get_mut(&number) {
            Some(command) => command,
            None => return,
        };
        if let Some(programs) = &mut command.programs {
            self.news.answers.extend(programs.write(offset, data, asker, looper));
            self.go_on(number, looper);
            return;
        }
        let answers = command.input.write(offset, data, eof, asker, looper);
        self.news.answers.extend(answers);
        self.rest_input(number, looper);
    }

    /// Something has happened that a command of several cases may have waited for.
    fn go_on(&mut self, number: u64, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number) {
            if let Some(mut cases) = command.cases.take() {
                cases.go_on(command, looper);
                command.cases = Some(cases);
            }
            if let Some(mut programs) = command.programs.take() {
                if programs.go_on(command, looper) {
                    self.news.renewals.push(number);
                }
                command.programs = Some(programs);
            }
        }
    }

    /// Another process, once nothing of the last one lives.
    pub fn renew(&mut self, number: u64, looper: &mut EventLoop, processes: &Processes) {
        let command = match self.by_number.get_mut(&number).filter(|command| command.result.is_none()) {
            Some(command) => command,
            None => return,
        };
        let is_given_up = match &command.programs {
            Some(programs) => programs.is_given_up(command),
            None => command.is_given_up(),
        };
        let spec = match command.spec.take() {
            Some(spec) if !is_given_up && !self.ending => spec,
            _ => return self.end_series(number, looper),
        };
        let mut input = None;
        let mut words = spec.command.clone();
        if let Some(mut programs) = command.programs.take() {
            let may_begin = programs.may_begin(command, looper);
            if may_begin {
                words = programs.next_command();
                input = programs.open_input(command);
            }
            command.programs = Some(programs);
            if !may_begin {
                command.spec = Some(spec);
                return;
            }
            if input.is_none() {
                return self.end_series(number, looper);
            }
        }
        let reports = command.cases.as_ref().map(|cases| cases.reports);
        let streams = match (reports, &input) {
            (Some(reports), _) => Streams::Cases { reports },
            (None, given) => Streams::Pipes { stdin: false, given: given.as_ref() },
        };
        let launched = self
            .directory(&spec)
            .and_then(|directory| self.launch(&spec, &directory, &words, streams, looper, processes));
        if let Some(command) = self.by_number.get_mut(&number) {
            command.spec = Some(spec);
        }
        match launched {
            Err(_) => self.end_series(number, looper),
            Ok(Err(failure)) => self.not_started(number, &failure, looper),
            Ok(Ok((tag, mut spawned))) => {
                let case_ends = spawned.ends.cases.take();
                if let Some(command) = self.by_number.get_mut(&number).filter(|_| case_ends.is_some()) {
                    let given = command.input.kept.take().unwrap_or_default();
                    let mut fresh = Input::new(spawned.ends.stdin.take(), Token::Input(number), false);
                    fresh.kept = Some(Vec::new());
                    fresh.write(0, given, true, None, looper);
                    command.input = fresh;
                }
                self.runs(number, tag, spawned, case_ends, looper, processes);
            }
        }
    }

    fn not_started(&mut self, number: u64, failure: &Failure, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number) {
            let next = if let Some(mut cases) = command.cases.take() {
                let next = cases.not_started(failure, command, looper);
                command.cases = Some(cases);
                next
            } else if let Some(mut programs) = command.programs.take() {
                let next = programs.not_started(failure, command, looper);
                command.programs = Some(programs);
                next
            } else {
                Next::Wait
            };
            self.follow(number, next, looper);
        }
    }

    /// What follows a case.
    fn follow(&mut self, number: u64, next: Next, looper: &mut EventLoop) {
        self.collect_left(number, looper);
        match next {
            Next::Wait => {}
            Next::Over => return self.end_series(number, looper),
            Next::Renew => {
                if let Some(programs) = self.by_number.get_mut(&number).and_then(|command| command.programs.as_mut()) {
                    self.news.answers.extend(programs.begin_share());
                }
                self.news.renewals.push(number);
            }
        }
        let waiting = self.by_number.get(&number).map_or(0, |command| command.outputs[0].waiting_bytes());
        if waiting >= GATHERED_BYTES {
            self.moved(number, looper);
        }
    }

    /// No other process of it follows.
    fn end_series(&mut self, number: u64, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number) {
            let answers = command.end_series(looper);
            self.news.answers.extend(answers);
            self.moved(number, looper);
        }
    }

    /// Something has come by a pipe of what runs the cases of a command.
    pub fn case_happened(&mut self, number: u64, which: u8, looper: &mut EventLoop) {
        self.with_series(
            number,
            looper,
            |cases, command, looper| {
                cases.happened(usize::from(which), command, looper);
                Next::Wait
            },
            |programs, command, looper| programs.happened(usize::from(which), command, looper),
        );
    }

    /// The time of a case is over.
    pub fn case_late(&mut self, number: u64, looper: &mut EventLoop) {
        self.with_series(
            number,
            looper,
            |cases, command, looper| {
                cases.too_late(command, looper);
                Next::Wait
            },
            |programs, command, looper| programs.too_late(command, looper),
        );
    }

    /// Nobody can record anything any more.
    pub fn case_unheard(&mut self, number: u64, looper: &mut EventLoop) {
        self.with_series(
            number,
            looper,
            |cases, command, _| {
                cases.give_up(command);
                Next::Wait
            },
            |_, _, _| Next::Wait,
        );
    }

    fn with_series(
        &mut self,
        number: u64,
        looper: &mut EventLoop,
        of_cases: impl FnOnce(&mut Cases, &mut Command, &mut EventLoop) -> Next,
        of_programs: impl FnOnce(&mut Programs, &mut Command, &mut EventLoop) -> Next,
    ) {
        if let Some(command) = self.by_number.get_mut(&number) {
            let mut next = Next::Wait;
            if let Some(mut cases) = command.cases.take() {
                next = of_cases(&mut cases, command, looper);
                command.cases = Some(cases);
            } else if let Some(mut programs) = command.programs.take() {
                next = of_programs(&mut programs, command, looper);
                command.programs = Some(programs);
            }
            self.follow(number, next, looper);
        }
    }

    /// Whether there has been no sign for too long of those whom a command of programs waits for. Its id then.
    pub fn starved(&mut self, number: u64, looper: &mut EventLoop) -> Option<Vec<u8>> {
        let command = self.by_number.get_mut(&number)?;
        let mut programs = command.programs.take()?;
        let is_starved = programs.is_starved(command, looper);
        command.programs = Some(programs);
        if is_starved {
            self.too_late(number, looper)
        } else {
            None
        }
    }

    /// Somebody has ended a command: no process may be there whose end would be the end of it.
    fn give_up(&mut self, number: u64, looper: &mut EventLoop) {
        let is_held = |command: &Command| command.programs.as_ref().map_or(false, |programs| programs.is_held());
        if self.by_number.get(&number).map_or(false, is_held) {
            self.end_series(number, looper);
        }
    }

    // -- what happens to them ---------------------------------------------------------------------------------------------

    pub fn readable(&mut self, number: u64, stream: u8, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number) {
            let output = &mut command.outputs[usize::from(stream & 1)];
            let pieces = if output.terminal().is_some() { PIECES_A_TURN } else { 1 };
            for _ in 0..pieces {
                match output.read(looper) {
                    Took::Some => {}
                    Took::Nothing => break,
                    Took::Rest => {
                        looper.after(SCREEN_SECONDS, Call::ScreenAgain(number));
                        break;
                    }
                }
            }
            self.moved(number, looper);
        }
    }

    pub fn writable(&mut self, number: u64, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number) {
            let answers = command.input.go_on(looper);
            self.news.answers.extend(answers);
            self.rest_input(number, looper);
        }
    }

    /// Sets the clock by which a terminal's input is looked at again.
    pub fn rest_input(&mut self, number: u64, looper: &mut EventLoop) {
        if let Some(seconds) = self.by_number.get_mut(&number).and_then(|command| command.input.wake_after.take()) {
            looper.after(seconds, Call::KeyboardAgain(number));
        }
    }

    /// Looks whether a child is its program by now, and helps it where it is not.
    pub fn look_at_birth(&mut self, number: u64, looper: &mut EventLoop, processes: &Processes) {
        if let Some(command) = self.by_number.get_mut(&number) {
            if !command.is_born(looper, processes) {
                command.help_birth(looper, processes);
            } else if let Some(pid) = command.pid {
                // Before it was the program it hid this from its own user, as process 1 does.
                processes.offer(pid, &self.badness);
            }
        }
    }

    pub fn drain(&mut self, number: u64, looper: &mut EventLoop) {
        let over = match self.drains.get(&number) {
            Some(fd) => match sys::read_some(fd, &mut [0; 4096]) {
                Ok(count) => count == 0,
                Err(error) => sys::number_of(&error) != sys::EAGAIN,
            },
            None => false,
        };
        if over {
            if let Some(fd) = self.drains.remove(&number) {
                looper.forget(fd.as_raw_fd());
            }
        }
    }

    /// Something was read or may be over.
    pub fn moved(&mut self, number: u64, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number).filter(|command| command.is_over()) {
            let left = command.finish(looper);
            command.left.extend(left);
            self.is_over(number, looper);
        }
        self.collect_left(number, looper);
        self.news.ready.push(number);
    }

    /// Takes the pipes that a command has given away.
    fn collect_left(&mut self, number: u64, looper: &mut EventLoop) {
        let left = self.by_number.get_mut(&number).map(|command| std::mem::take(&mut command.left)).unwrap_or_default();
        for fd in left {
            self.count += 1;
            looper.watch(fd.as_raw_fd(), sys::EPOLLIN, Token::Drain(self.count));
            self.drains.insert(self.count, fd);
        }
    }

    fn is_over(&mut self, number: u64, looper: &EventLoop) {
        self.last_end = looper.now();
        if let Some(command) = self.by_number.get(&number).filter(|command| command.main) {
            self.news.main_exit = Some((command.returncode, command.oom_killed));
        }
    }

    /// Bytes, or with `done` the whole result, have arrived for good. How much a command had printed that is kept no more.
    pub fn confirm(&mut self, exec_id: &[u8], offsets: [u64; 2], done: bool, looper: &mut EventLoop) -> u64 {
        let number = match self.by_id.get(exec_id) {
            Some(number) => *number,
            None => return 0,
        };
        if let Some(command) = self.by_number.get_mut(&number) {
            for (output, offset) in command.outputs.iter_mut().zip(offsets) {
                output.confirm(offset, looper);
            }
        }
        if let Some(programs) = self.by_number.get_mut(&number).and_then(|command| command.programs.as_mut()) {
            programs.confirmed(looper);
        }
        self.go_on(number, looper);
        self.moved(number, looper);
        if done && self.by_number.get(&number).map_or(false, |command| command.result.is_some()) {
            self.by_id.remove(exec_id);
            let command = self.by_number.remove(&number);
            self.past.insert(exec_id.to_vec(), command.as_ref().and_then(|command| command.tag));
            self.past_in_order.push_back(exec_id.to_vec());
            self.forget_the_oldest();
            return command.map_or(0, |command| command.outputs.iter().map(Output::end).sum());
        }
        0
    }

    /// The ids that run no more here, at most so many, the newest ones in their order; then those that are on their way to that.
    pub fn known(&self, most: usize) -> Vec<Vec<u8>> {
        newest(&self.past_in_order, most).chain(self.by_id.keys()).cloned().collect()
    }

    /// Takes ids that have run in another place of the sandbox.
    pub fn remember(&mut self, ids: Vec<Vec<u8>>) {
        for id in ids {
            if !self.by_id.contains_key(&id) && self.past.insert(id.clone(), None).is_none() {
                self.past_in_order.push_back(id);
            }
        }
        self.forget_the_oldest();
    }

    fn forget_the_oldest(&mut self) {
        while self.past_in_order.len() > REMEMBERED {
            let oldest = match self.past_in_order.pop_front() {
                Some(oldest) => oldest,
                None => return,
            };
            if let Some(Some(tag)) = self.past.remove(&oldest) {
                if self.by_tag.get(&tag) == Some(&oldest) {
                    self.by_tag.remove(&tag);
                }
            }
        }
    }

    /// A channel, or a whole connection, listens no more.
    pub fn unsubscribe(&mut self, connection: u64, channel: Option<u16>, looper: &mut EventLoop) {
        for command in self.by_number.values_mut() {
            let is_it = |subscriber: &Subscriber| {
                subscriber.connection == connection && channel.map_or(true, |channel| channel == subscriber.channel)
            };
            if command.subscriber.as_ref().map_or(false, is_it) {
                command.listen(None, looper);
            }
        }
    }

    // -- too much memory --------------------------------------------------------------------------------------------------

    /// A command has ended so: because the kernel killed something at the limit of memory?
    fn look_for_kills(&mut self, number: u64, status: Status) {
        if self.group.is_some() {
            let killed = self.by_number.get(&number).and_then(|command| command.tag);
            self.blame(killed.filter(|_| status == Status::Killed(sys::SIGKILL)));
        }
    }

    /// If the kernel has killed a process for its memory, the rest of its command goes the same way.
    pub fn blame(&mut self, killed: Option<u64>) {
        let is_running = |command: &&Command| command.is_running();
        let running: Vec<Option<u64>> = self.by_number.values().filter(is_running).map(|command| command.tag).collect();
        let group = match &mut self.group {
            Some(group) => group,
            None => return,
        };
        if group.has_killed() {
            if let Some(tag) = killed.or_else(|| group.suspect(&running)) {
                self.out_of_memory(tag);
            }
        }
    }

    /// Kills all of a command, which has taken too much; whether there is one of this tag.
    pub fn out_of_memory(&mut self, tag: u64) -> bool {
        let exec_id = match self.by_tag.get(&tag) {
            Some(exec_id) => exec_id.clone(),
            None => return false,
        };
        if let Ok(command) = self.find(&exec_id) {
            if command.is_running() && command.tag == Some(tag) {
                command.oom_killed = true;
            }
        }
        self.news.kills.push(exec_id);
        true
    }

    /// Kills all commands; those that run say why on stderr.
    pub fn kill_all(&mut self, why: &str, looper: &mut EventLoop, processes: &Processes) {
        let running: Vec<u64> =
            self.by_number.values().filter(|command| command.is_running()).map(|command| command.number).collect();
        for number in running {
            if let Some(command) = self.by_number.get_mut(&number) {
                command.last_words = Some(why.as_bytes().to_vec());
            }
            self.give_up(number, looper);
        }
        processes.signal_all(sys::SIGKILL);
    }

    /// Device and number of each file in memory that is a program's input: nobody inside made it or can write to it.
    pub fn input_files(&self) -> HashSet<(u64, u64)> {
        let given = |command: &Command| command.programs.as_ref().and_then(|programs| programs.input_file());
        self.by_number.values().filter_map(given).collect()
    }

    // -- their end --------------------------------------------------------------------------------------------------------

    /// Collects the dead, the orphans included, and a bounded number a turn; true if there may be more.
    pub fn reap(&mut self, looper: &mut EventLoop, processes: &Processes) -> bool {
        for _ in 0..REAP_A_TURN {
            let (pid, status, usage) = match sys::wait_any() {
                Ok(Some(found)) => found,
                Ok(None) | Err(_) => return false,
            };
            if status == Status::Stopped {
                // A child can make its parent its tracer, unasked. It is not over, and has no business with us.
                drop(sys::send_signal(pid, sys::SIGKILL));
                continue;
            }
            if processes.subreaper_is_gone(pid) && matches!(status, Status::Killed(_)) {
                // By a command of another subreaper, if not by us: what it kept belongs to nobody now.
                self.news.lost_subreaper = true;
            }
            if let Some(number) = self.by_pid.remove(&pid) {
                self.look_for_kills(number, status);
                self.reaped(number, status, usage, looper, processes);
            }
        }
        true
    }

    fn reaped(&mut self, number: u64, status: Status, usage: Usage, looper: &mut EventLoop, processes: &Processes) {
        let command = match self.by_number.get_mut(&number) {
            Some(command) => command,
            None => return,
        };
        command.silenced = self.ending && matches!(status, Status::Killed(_));
        command.is_born(looper, processes);
        if command.cases.is_some() || command.programs.is_some() {
            command.pid = None;
            if let Some(failure) = command.take_failure() {
                return self.not_started(number, &failure, looper);
            }
            let answers = command.input.close(looper);
            self.news.answers.extend(answers.into_iter().filter(|(asker, _)| asker.is_some()));
            return self.with_series(
                number,
                looper,
                |cases, command, looper| cases.reaped(status, usage, command, looper),
                |programs, command, looper| programs.reaped(status, usage, command, looper),
            );
        }
        let answers = command.reaped(status, usage, looper);
        self.news.answers.extend(answers);
        self.moved(number, looper);
        if self.by_number.get(&number).map_or(false, |command| command.result.is_none()) {
            looper.after(LINGER_SECONDS, Call::LingerOver(number));
        }
    }

    /// A subreaper tells of the end of its command.
    pub fn subreaper_told(&mut self, number: u64, looper: &mut EventLoop, processes: &Processes) {
        let heard = self.by_number.get_mut(&number).and_then(|command| command.hear_subreaper(looper));
        if let Some((status, usage)) = heard {
            self.look_for_kills(number, status);
            self.reaped(number, status, usage, looper, processes);
        }
    }

    pub fn linger_over(&mut self, number: u64, looper: &mut EventLoop) {
        if let Some(command) = self.by_number.get_mut(&number) {
            command.linger_no_longer();
            self.moved(number, looper);
        }
    }

    /// What carries the tag of a command, if anything may.
    pub fn tag_of(&self, exec_id: &[u8]) -> Option<u64> {
        match self.by_id.get(exec_id).and_then(|number| self.by_number.get(number)) {
            Some(command) => command.tag,
            None => self.past.get(exec_id).copied().flatten(),
        }
    }

    /// Whether a tag means this command yet.
    pub fn is_tagged(&self, tag: u64, exec_id: &[u8]) -> bool {
        self.by_tag.get(&tag).map_or(false, |found| found == exec_id)
    }

    /// The process of a command that was killed and has not been reaped, if it is there.
    pub fn unreaped(&self, exec_id: &[u8]) -> Option<i32> {
        let command = self.by_id.get(exec_id).and_then(|number| self.by_number.get(number))?;
        command.pid.filter(|pid| self.by_pid.get(pid) == Some(&command.number))
    }

    /// The caller gives a command up: if it runs, that is how it ended.
    pub fn cancelled(&mut self, exec_id: &[u8], looper: &mut EventLoop) {
        let number = match self.find(exec_id) {
            Ok(command) if command.is_running() => {
                command.cancelled = true;
                command.number
            }
            _ => return,
        };
        self.give_up(number, looper);
    }

    /// Its time is over. Its id, where it runs.
    pub fn too_late(&mut self, number: u64, looper: &mut EventLoop) -> Option<Vec<u8>> {
        let command = self.by_number.get_mut(&number).filter(|command| command.is_running())?;
        command.timed_out = true;
        let exec_id = command.exec_id.clone();
        self.give_up(number, looper);
        Some(exec_id)
    }

    /// Ids of all but the main command, those that run given up; and the tag of that if it runs.
    pub fn give_up_others(&mut self, looper: &mut EventLoop) -> (Vec<Vec<u8>>, Option<u64>) {
        let is_main = |command: &&Command| command.main && command.is_running();
        let tag = self.by_number.values().find(is_main).and_then(|command| command.tag);
        let others: Vec<Vec<u8>> =
            self.by_number.values().filter(|command| !command.main).map(|command| command.exec_id.clone()).collect();
        for exec_id in &others {
            self.cancelled(exec_id, looper);
        }
        (others, tag)
    }

    pub fn hang_up(&self) {
        for command in self.by_number.values().filter(|command| command.is_running()) {
            command.hang_up();
        }
    }

    /// Whether all output is read and sent to those who listen; with `main_too`, someone listened to the main command.
    pub fn all_sent(&self, main_too: bool, queued: impl Fn(u64) -> bool) -> bool {
        !self.by_number.values().any(|command| {
            let is_awaited = main_too && command.main && !command.silenced && !command.is_delivered();
            command.is_unfinished() || is_awaited || (command.subscriber.is_some() && queued(command.number))
        })
    }

    /// The results that nobody has confirmed, a line each, the newest first.
    pub fn unconfirmed(&self) -> Vec<Vec<u8>> {
        let mut room = LEFT_BYTES;
        let mut lines = Vec::new();
        for command in self.by_number.values().rev() {
            if command.result.is_none() || command.silenced || command.main {
                continue;
            }
            let line = command.left_behind();
            match room.checked_sub(line.len()) {
                Some(left) => room = left,
                None => break,
            }
            lines.push(line);
        }
        lines
    }

    /// When a command ran last: `now` if one runs, and up to `result_seconds` later where a result was not taken yet.
    pub fn used_until(&self, now: f64, result_seconds: f64) -> f64 {
        if self.by_number.values().any(Command::is_running) {
            now
        } else if self.by_number.is_empty() {
            self.last_end
        } else {
            now.min(self.last_end + result_seconds)
        }
    }
}

/// Each name once, where it was first, with its last value. There can be as many as fit a request.
fn last_of_each(given: Variables) -> Variables {
    let mut places: HashMap<Vec<u8>, usize> = HashMap::with_capacity(given.len());
    let mut found: Variables = Vec::with_capacity(given.len());
    for (name, value) in given {
        match places.get(&name) {
            Some(place) => found[*place].1 = value,
            None => {
                places.insert(name.clone(), found.len());
                found.push((name, value));
            }
        }
    }
    found
}

/// What commands have where this process has what it has.
fn badness() -> Vec<u8> {
    let mut text = [0; 32];
    let own = sys::open_at(AT_FDCWD, b"/proc/self/oom_score_adj", O_RDONLY, 0)
        .and_then(|fd| sys::read_some(&fd, &mut text))
        .ok()
        .and_then(|count| std::str::from_utf8(&text[..count]).ok()?.trim().parse::<i32>().ok());
    (own.unwrap_or(0) + BADNESS).min(1000).to_string().into_bytes()
}

/// Makes a directory and those above it.
fn make_whole_path(path: &[u8]) -> io::Result<()> {
    let is_there = || sys::stat_path(AT_FDCWD, path).map_or(false, |found| found.is_directory());
    if is_there() {
        return Ok(());
    }
    let ends = path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0).map(|(at, _)| at);
    for end in ends.chain(std::iter::once(path.len())) {
        match sys::make_directory(AT_FDCWD, &path[..end], 0o777) {
            Err(error) if sys::number_of(&error) != sys::EEXIST => return Err(error),
            _ => {}
        }
    }
    if is_there() {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(sys::EEXIST))
    }
}

/// A directory counted from another one, for operations on files.
/// A variable of the sandbox, where what it says of root is said of another user.
fn of_account(variable: &(Vec<u8>, Vec<u8>), account: Option<&Account>) -> (Vec<u8>, Vec<u8>) {
    let (name, value) = variable;
    let own = account.and_then(|account| match (&name[..], &value[..]) {
        (b"HOME", b"/root") => Some(account.home.clone()),
        (b"USER" | b"LOGNAME", b"root") => Some(account.name.clone()),
        // Whoever looks for a program where he may not look is told that he may not have it, and not that there is none.
        (b"PATH", path) => Some(path_of_account(path, &account.home)),
        _ => None,
    });
    (name.clone(), own.unwrap_or_else(|| value.clone()))
}

fn path_of_account(path: &[u8], home: &[u8]) -> Vec<u8> {
    let own = path.split(|byte| *byte == b':').map(|part| match part.strip_prefix(b"/root/") {
        Some(below) => [home, b"/", below].concat(),
        None => part.to_vec(),
    });
    own.collect::<Vec<_>>().join(&b':')
}

pub fn path_of(working_dir: &[u8], path: &[u8]) -> Vec<u8> {
    if matches!(path, b"." | b"./") {
        return working_dir.to_vec();
    }
    paths::join(working_dir, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_programs_are_looked_for() {
        assert_eq!(path_of_account(b"/bin:/root/.local/bin", b"/home/bob"), b"/bin:/home/bob/.local/bin");
        assert_eq!(path_of_account(b"/root:/rooted/bin:", b"/home/bob"), b"/root:/rooted/bin:");
    }
}
