//! The sandbox's one authority: requests in, what they do, answers out. One thread, a bounded amount of work a turn.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::mem;
use std::os::unix::io::{AsRawFd, OwnedFd};

use crate::by_number::ByNumber;
use crate::command::{fingerprint, Listener};
use crate::commands::{Commands, News};
use crate::connection::{Connection, Sent, Source, LARGE_BYTES};
use crate::ending::Ending;
use crate::errors::{Fields, Refused, Variables};
use crate::event_loop::{Call, EventLoop, Timer, Token, STOOD_STILL_SECONDS};
use crate::files::{Open, TreeUpload};
use crate::frames::{self, Head, Sink};
use crate::host_name;
use crate::idempotency::Again;
use crate::json::{self, object, Value};
use crate::killing::{Cancel, CancelAll, Kill, KillLost, Renew};
use crate::limits::cgroup::Group;
use crate::limits::{Act, Watch};
use crate::newcomers::Newcomers;
use crate::operations;
use crate::paths;
use crate::pausing::Pause;
use crate::ports::Ports;
use crate::process_tree::{Processes, Step};
use crate::relayed::Listening;
use crate::rest::InMemory;
use crate::spawn::Birthplace;
use crate::subreaper::Subreapers;
use crate::sys::{self, Event, Room, AT_FDCWD, O_RDONLY};

const PROTOCOL: i64 = 1;
const FEATURES: [&str; 19] = [
    "exec",
    "files",
    "usage",
    "kill_scope:command",
    "terminal",
    "long_commands",
    "together",
    "input",
    "cancel_all",
    "again",
    "cases",
    "programs",
    "user",
    "layer",
    "exact_trees",
    "rest",
    HOST_NAME,
    DIAL,
    ACCEPT,
];
/// Not where there are no namespaces: the name is the machine's.
const HOST_NAME: &str = "host_name";
/// Where no descriptor can be handed on.
const DIAL: &str = "dial";
const ACCEPT: &str = "accept";
/// Over a network others come as well, code inside among them.
const BACKLOG: i32 = 128;
const ACCEPT_RETRY_SECONDS: f64 = 1.0;
const RECEIVED_BYTES: usize = 256 << 10;
/// So much of what was received stays in memory between two turns.
const KEPT_BYTES: usize = 16 << 10;
/// So long a result that nobody has taken yet counts as use: its client may be on its way back to it.
const RESULT_SECONDS: f64 = 60.0;
/// Where commands work if nothing else is said.
const USUAL_DIRECTORY: &[u8] = b"/workspace";
const USUAL_ORPHAN_SECONDS: f64 = 600.0;
const FIRST_LOOK_SECONDS: f64 = 0.1;
/// Memory that nothing has needed for so long goes back to the kernel: earlier, what comes next would fetch it again.
const GIVE_BACK_SECONDS: f64 = 0.1;

/// What a process 1 is started with.
pub struct Descriptors {
    /// To the server that made the sandbox.
    pub connection: OwnedFd,
    /// Where later servers connect.
    pub listener: OwnedFd,
    /// A file for last words.
    pub note: OwnedFd,
    /// Its writable layer.
    pub layer: Option<OwnedFd>,
    /// What tells of its sockets.
    pub sockets: Option<OwnedFd>,
    /// Where servers connect for what ports need.
    pub ports: Option<OwnedFd>,
    /// Of control groups, see `zygote::make_groups`.
    pub groups: Vec<OwnedFd>,
    /// Of a control group of version 2: what every command takes beside the filter of process 1.
    pub born_filter: Vec<u8>,
    /// Where there are no namespaces.
    pub descent: Option<Descent>,
    /// Where anybody can connect.
    pub newcomers: Option<Newcomers>,
    /// Where it was started in its image.
    pub around: Option<Surroundings>,
}

/// What an image says of its commands, where no server knows that.
pub struct Surroundings {
    pub environment: Variables,
    pub directory: Vec<u8>,
}

/// How a sandbox without namespaces knows its processes.
pub struct Descent {
    /// What keeps commands from the supervisor and their subreapers.
    pub filter: Vec<u8>,
    /// See `Processes::know_by_descent`.
    pub exact: bool,
    /// By which it is asked about calls, and those whose number is the second argument.
    pub asked: Option<(OwnedFd, Vec<i64>)>,
}

/// Work in bounded steps.
pub trait Job {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step;
}

pub struct Supervisor {
    pub looper: EventLoop,
    pub processes: Processes,
    pub commands: Commands,
    pub connection: Option<Connection>,
    pub ending: Ending,
    pub again: Again,
    pub pause: Pause,
    pub note: OwnedFd,
    /// Requests that are not over, by their channels.
    pub open: HashMap<u16, Open>,
    /// Trees on their way in, by a number of their own.
    pub trees: HashMap<u64, TreeUpload>,
    listener: OwnedFd,
    pub newcomers: Option<Newcomers>,
    /// Ports at which it listens for its server.
    pub listening: Vec<Listening>,
    around: Option<Surroundings>,
    ports: Option<Ports>,
    by_number: Option<ByNumber>,
    pub watch: Watch,
    children: OwnedFd,
    received: Room,
    jobs: HashMap<u64, Box<dyn Job>>,
    due_jobs: VecDeque<u64>,
    count: u64,
    boot_id: Vec<u8>,
    pid_namespace: u64,
    configured: bool,
    /// What lay in memory before anything ran.
    pub in_memory: Option<InMemory>,
    orphan_seconds: f64,
    orphan_due: f64,
    orphan_timer: Option<Timer>,
    last_heard: f64,
    lifetime_end: f64,
    idle_seconds: Option<f64>,
    last_call: f64,
    /// Whether this turn has let go of what a command had printed.
    freed_much: bool,
    /// When memory was last needed that is to be given back.
    needed_memory: Option<f64>,
}

impl Supervisor {
    pub fn new(given: Descriptors) -> io::Result<Supervisor> {
        let mut looper = EventLoop::new()?;
        let children = sys::hear_of_children()?;
        sys::never_block(&given.listener)?;
        sys::listen_again(&given.listener, BACKLOG)?;
        looper.watch(given.listener.as_raw_fd(), sys::EPOLLIN, Token::Listener);
        looper.watch(children.as_raw_fd(), sys::EPOLLIN, Token::Children);
        let ports = given.ports.map(|listener| Ports::new(listener, &mut looper)).transpose()?;
        let mut processes = Processes::new()?;
        let mut subreapers = None;
        let mut by_number = None;
        if let Some(descent) = given.descent {
            sys::be_deaf();
            processes.know_by_descent(descent.exact);
            subreapers = Some(Subreapers::new(&descent.filter));
            by_number = descent.asked.map(|(asked, second)| ByNumber::new(asked, second));
        }
        if let Some(by_number) = &by_number {
            looper.watch(by_number.asked.as_raw_fd(), sys::EPOLLIN, Token::Asked);
        }
        let mut newcomers = given.newcomers;
        newcomers.iter_mut().for_each(|newcomers| newcomers.begin(&mut looper));
        let now = looper.now();
        let mut supervisor = Supervisor {
            commands: Commands::new(&looper)?,
            pid_namespace: processes.namespace("self/ns/pid").unwrap_or(0),
            looper,
            processes,
            connection: None,
            ending: Ending::new(),
            again: Again::new(),
            pause: Pause::default(),
            note: given.note,
            open: HashMap::new(),
            trees: HashMap::new(),
            listener: given.listener,
            newcomers,
            listening: Vec::new(),
            around: given.around,
            ports,
            by_number,
            watch: Watch::new(given.layer, given.sockets),
            children,
            received: Room::new(RECEIVED_BYTES)?,
            jobs: HashMap::new(),
            due_jobs: VecDeque::new(),
            count: 0,
            boot_id: boot_id(),
            configured: false,
            in_memory: None,
            orphan_seconds: USUAL_ORPHAN_SECONDS,
            orphan_due: now,
            orphan_timer: None,
            last_heard: now,
            lifetime_end: f64::INFINITY,
            idle_seconds: None,
            last_call: now,
            freed_much: false,
            needed_memory: None,
        };
        if subreapers.is_some() {
            supervisor.watch.commands_have_a_filter();
        }
        supervisor.commands.subreapers = subreapers;
        supervisor.enter_groups(given.groups, given.born_filter);
        supervisor.adopt(given.connection);
        supervisor.look_for_server();
        Ok(supervisor)
    }

    /// Has commands started in control groups, in which the kernel keeps the limit of memory.
    fn enter_groups(&mut self, groups: Vec<OwnedFd>, born_filter: Vec<u8>) {
        let mut groups = groups.into_iter();
        let (control, second) = match (groups.next(), groups.next()) {
            (Some(control), Some(second)) => (control, second),
            (Some(control), None) => {
                // Of the whole sandbox, process 1 included: nobody is put anywhere.
                self.commands.group = Some(Group::new(control, None));
                return;
            }
            _ => return,
        };
        if born_filter.is_empty() {
            self.commands.group = Some(Group::new(control, Some(second)));
            self.commands.birth = Birthplace { tasks: groups.collect(), ..Birthplace::default() };
        } else {
            self.watch.commands_have_a_filter();
            self.commands.group = Some(Group::new(control, None));
            self.commands.birth = Birthplace { directory: Some(second), filter: born_filter, tasks: Vec::new() };
        }
    }

    /// Runs until the sandbox is over.
    pub fn run(&mut self) -> ! {
        let mut found: Vec<Event> = Vec::new();
        loop {
            self.looper.wait(&mut found);
            self.have_happened(&mut found);
            if let Some(now) = self.looper.look(&mut found) {
                self.have_happened(&mut found);
                while let Some(call) = self.looper.due(now) {
                    self.call(call);
                    self.tell_news();
                }
            }
            for _ in 0..self.due_jobs.len() {
                if let Some(number) = self.due_jobs.pop_front() {
                    self.work_on(number);
                    self.tell_news();
                }
            }
            self.flush();
            self.look_at_pause();
            self.note_memory();
            if !self.due_jobs.is_empty() {
                self.looper.hurry();
            }
        }
    }

    fn have_happened(&mut self, found: &mut Vec<Event>) {
        for event in found.drain(..) {
            self.happened(EventLoop::token_of(event), event.events);
            self.tell_news();
        }
    }

    fn happened(&mut self, token: Token, events: u32) {
        match token {
            Token::Listener => self.accept(),
            Token::Connection => self.on_connection(events),
            Token::Children => {
                // What it says is known: some are dead.
                drop(sys::read_some(&self.children, &mut [0; 1024]));
                self.reap();
            }
            Token::Output(number, stream) => self.commands.readable(number, stream, &mut self.looper),
            Token::Input(number) => self.commands.writable(number, &mut self.looper),
            Token::Drain(number) => self.commands.drain(number, &mut self.looper),
            Token::Subreaper(number) => self.commands.subreaper_told(number, &mut self.looper, &self.processes),
            Token::Asked => {
                if let Some(by_number) = &self.by_number {
                    by_number.answer(&self.processes);
                }
            }
            Token::Newcomer(number) => {
                let heard = self.newcomers.as_mut().map(|newcomers| newcomers.hear(number, &mut self.looper));
                if let Some((_, Some(socket))) = heard {
                    self.adopt(socket);
                }
            }
            // They are before a sandbox runs.
            Token::Server(_) => {}
            Token::PortsListener | Token::Ports | Token::Dial(_) => self.ports_happened(token, events),
            Token::Case(number, which) => self.commands.case_happened(number, which, &mut self.looper),
            Token::Relayed(number) => self.relayed_happened(number, events),
            Token::RelayedListener(port) => self.accept_relayed(port),
        }
    }

    fn call(&mut self, call: Call) {
        match call {
            Call::LookForServer => self.look_for_server(),
            Call::LiveNoLonger => self.end("lifetime", 0.0, None),
            Call::LookForUse => self.look_for_use(),
            Call::EndOn => self.end_on(),
            Call::HangUp => self.hang_up(),
            Call::LeaveWhenSent => self.leave_when_sent(),
            Call::AcceptAgain => {
                let fd = self.listener.as_raw_fd();
                self.looper.watch(fd, sys::EPOLLIN, Token::Listener);
            }
            Call::NewcomerLate(number) => {
                if let Some(newcomers) = &mut self.newcomers {
                    drop(newcomers.let_go(number, &mut self.looper));
                }
            }
            Call::ServerLate(_) => {}
            Call::TryBlindly => {
                for (token, events) in self.looper.try_blindly() {
                    self.happened(token, events);
                }
            }
            Call::Job(number) => self.due_jobs.push_back(number),
            Call::TooLate(number) => {
                if let Some(exec_id) = self.commands.too_late(number, &mut self.looper) {
                    let kill = Kill::new(&exec_id, &self.commands);
                    self.start_job(Box::new(kill));
                }
            }
            Call::LingerOver(number) => self.commands.linger_over(number, &mut self.looper),
            Call::ScreenAgain(number) => {
                let looper = &mut self.looper;
                if let Some(command) = self.commands.get(number) {
                    command.outputs[0].wake(looper);
                }
            }
            Call::KeyboardAgain(number) => self.commands.writable(number, &mut self.looper),
            Call::Birth(number) => self.commands.look_at_birth(number, &mut self.looper, &self.processes),
            Call::CaseLate(number) => self.commands.case_late(number, &mut self.looper),
            Call::CaseUnheard(number) => self.commands.case_unheard(number, &mut self.looper),
            Call::Starved(number) => {
                if let Some(exec_id) = self.commands.starved(number, &mut self.looper) {
                    let kill = Kill::new(&exec_id, &self.commands);
                    self.start_job(Box::new(kill));
                }
            }
            Call::PortsAcceptAgain | Call::PortsFlush | Call::DialLate(_) => self.ports_called(&call),
            Call::RelayedLate(channel) => self.relayed_late(channel),
            Call::AcceptRelayedAgain(port) => self.accept_relayed_again(port),
            Call::CountDisk => self.count_disk(),
            Call::WaitedLong => {
                if let Some(connection) = &mut self.connection {
                    connection.waited(&mut self.looper);
                }
            }
            Call::GiveMemoryBack => self.give_memory_back(),
            Call::LookInMemory(number) => self.commands.look_in_memory(number, &mut self.looper),
            Call::TellOfLittle(number) => self.commands.tell_of_little(number),
            Call::Reap => self.reap(),
            Call::PartOver(key) => self.again.part_is_over(&key),
        }
    }

    fn ports_happened(&mut self, token: Token, events: u32) {
        let looper = &mut self.looper;
        if let Some(ports) = &mut self.ports {
            let before = ports.connections;
            match token {
                Token::PortsListener => ports.accept(looper),
                Token::Dial(id) => ports.dial_happened(id, looper),
                _ => ports.happened(events, looper),
            }
            if ports.connections != before {
                self.used();
            }
        }
    }

    fn ports_called(&mut self, call: &Call) {
        if let Some(ports) = &mut self.ports {
            match call {
                Call::PortsAcceptAgain => ports.watch_listener(&mut self.looper),
                Call::DialLate(id) => ports.dial_late(*id, &mut self.looper),
                _ => ports.flush(&mut self.looper),
            }
        }
    }

    /// Passes on what commands have to tell others.
    pub fn tell_news(&mut self) {
        let News { answers, ready, main_exit, renewals, started, lost_subreaper, kills } =
            std::mem::take(&mut self.commands.news);
        for exec_id in kills {
            self.watch.remove_system_v(&self.processes);
            let kill = Kill::new(&exec_id, &self.commands);
            self.start_job(Box::new(kill));
        }
        if lost_subreaper {
            self.start_job(Box::new(KillLost::new()));
        }
        if started && self.watch.watches() && !self.watch.running {
            self.watch.running = true;
            self.start_job(Box::new(Looks { has_waited: false }));
        }
        for number in renewals {
            if let Some(job) = Renew::new(number, &mut self.commands) {
                self.start_job(Box::new(job));
            }
        }
        for (asker, refused) in answers {
            let (connection, channel) = match asker {
                Some(asker) => asker,
                None => continue,
            };
            if self.connection.as_ref().map_or(false, |current| current.number == connection) {
                match refused {
                    None => self.reply(channel, &object([])),
                    Some(refused) => self.refuse(channel, &refused),
                }
            }
        }
        for number in ready {
            let current = self.connection.as_ref().map(|connection| connection.number);
            let listener = self.commands.get(number).and_then(|command| command.subscriber.as_ref());
            if listener.map_or(false, |listener| !listener.over && Some(listener.connection) == current) {
                self.feed_from(Source::Command(number));
            }
        }
        if let Some((returncode, oom_killed)) = main_exit {
            self.main_exited(returncode, oom_killed);
        }
    }

    // -- jobs -------------------------------------------------------------------------------------------------------------

    pub fn start_job(&mut self, job: Box<dyn Job>) -> u64 {
        let number = self.next_number();
        self.jobs.insert(number, job);
        self.due_jobs.push_back(number);
        number
    }

    pub fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    fn work_on(&mut self, number: u64) {
        let mut job = match self.jobs.remove(&number) {
            Some(job) => job,
            None => return,
        };
        match job.step(self) {
            Step::Again => self.due_jobs.push_back(number),
            Step::After(seconds) => drop(self.looper.after(seconds, Call::Job(number))),
            Step::Done => return,
        }
        self.jobs.insert(number, job);
    }

    // -- the connection ---------------------------------------------------------------------------------------------------

    fn accept(&mut self) {
        match sys::accept(&self.listener) {
            Ok(socket) => match &mut self.newcomers {
                Some(newcomers) => newcomers.take(socket, &mut self.looper),
                None => self.adopt(socket),
            },
            Err(error) => {
                if matches!(sys::number_of(&error), sys::EMFILE | sys::ENFILE | sys::ENOMEM | sys::ENOBUFS) {
                    self.looper.forget(self.listener.as_raw_fd());
                    self.looper.after(ACCEPT_RETRY_SECONDS, Call::AcceptAgain);
                }
            }
        }
    }

    /// The newest connection replaces the one before.
    fn adopt(&mut self, socket: OwnedFd) {
        if self.newcomers.is_some() {
            // Over a network an end says nothing: that another server has this sandbox now, its server is told.
            self.send(Head::of(frames::REPLACED, 0), b"");
            self.flush();
            if let Some(connection) = &mut self.connection {
                connection.hear_out(&mut self.received);
            }
        }
        self.close_connection();
        let number = self.next_number();
        let mut connection = match Connection::new(socket, number, &mut self.looper) {
            Ok(connection) => connection,
            Err(_) => return,
        };
        self.last_heard = connection.last_heard;
        let (is_own, is_networked) = (self.commands.subreapers.is_none(), self.newcomers.is_some());
        let features = FEATURES.iter().filter(|name| match **name {
            HOST_NAME => is_own,
            DIAL | ACCEPT => is_networked,
            _ => true,
        });
        let hello = object([
            ("protocol", PROTOCOL.into()),
            ("boot_id", Value::Text(self.boot_id.clone())),
            ("features", Value::Array(features.map(|name| (*name).into()).collect())),
            ("pid_namespace", self.pid_namespace.into()),
            ("orphan_timeout_seconds", self.orphan_seconds.into()),
            ("configured", self.configured.into()),
            ("execs", self.commands.summary()),
        ]);
        connection.send_json(frames::HELLO, &hello, 0);
        if self.newcomers.is_none() {
            connection.send(Head::of(frames::DESCRIPTORS, 0), b"");
        }
        self.connection = Some(connection);
    }

    fn close_connection(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.last_heard = connection.last_heard;
            self.commands.unsubscribe(connection.number, None, &mut self.looper);
            connection.close(&mut self.looper);
            let channels: Vec<u16> = self.open.keys().copied().collect();
            for channel in channels {
                self.close_channel(channel);
            }
        }
    }

    fn on_connection(&mut self, events: u32) {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => return,
        };
        if events & sys::EPOLLOUT != 0 {
            connection.unblock(&mut self.looper);
        }
        if events & (sys::EPOLLIN | sys::EPOLLHUP | sys::EPOLLERR) == 0 {
            return;
        }
        let count = match connection.receive(&mut self.received) {
            Err(error) if sys::number_of(&error) == sys::EAGAIN => return,
            Ok(count) if count > 0 => count,
            _ => return self.close_connection(),
        };
        connection.last_heard = self.looper.now();
        let number = connection.number;
        let mut decoder = std::mem::take(&mut connection.decoder);
        // What was received is not this structure's while its frames change that.
        let mut received = std::mem::replace(&mut self.received, Room::none());
        let result = decoder.feed(&received[..count], &mut Frames { supervisor: self, connection: number });
        if count > KEPT_BYTES {
            received.release();
        }
        self.received = received;
        match self.connection.as_mut().filter(|connection| connection.number == number) {
            Some(_) if result.is_err() => self.close_connection(),
            Some(connection) => connection.decoder = decoder,
            None => {}
        }
    }

    pub fn feed_from(&mut self, source: Source) {
        if let Some(connection) = &mut self.connection {
            connection.feed_from(source);
        }
    }

    /// Sends what there is, as far as the socket takes it.
    pub fn flush(&mut self) {
        let mut budget = Connection::budget();
        loop {
            self.fill();
            let connection = match &mut self.connection {
                Some(connection) if !connection.is_blocked() => connection,
                _ => return,
            };
            match connection.push(&mut budget, &mut self.looper) {
                Sent::All if connection.sources.is_empty() => return,
                Sent::All if budget > 0 => {}
                Sent::All | Sent::Enough => return self.looper.hurry(),
                Sent::Blocked => return,
                Sent::Broken => return self.close_connection(),
            }
        }
    }

    /// One pass: a source that never runs dry gets its next piece after the others.
    fn fill(&mut self) {
        let sources = self.connection.as_ref().map_or(0, |connection| connection.sources.len());
        for _ in 0..sources {
            let source = match self.connection.as_mut().filter(|connection| !connection.is_full()) {
                Some(connection) => connection.sources.pop_front(),
                None => return,
            };
            let more = match source {
                None => return,
                Some(Source::Command(number)) => match (self.commands.get(number), &mut self.connection) {
                    (Some(command), Some(connection)) => command.pump(connection, &mut self.looper),
                    _ => false,
                },
                Some(Source::Transfer(channel)) => self.pump_transfer(channel),
            };
            if let Some(source) = source.filter(|_| more) {
                self.feed_from(source);
            }
        }
    }

    pub fn send(&mut self, head: Head, payload: &[u8]) {
        if let Some(connection) = &mut self.connection {
            connection.send(head, payload);
        }
    }

    /// Answers a request, which is over.
    pub fn reply(&mut self, channel: u16, value: &Value) {
        self.close_channel(channel);
        self.send(Head::of(frames::REPLY, channel), &value.to_bytes());
    }

    pub fn refuse(&mut self, channel: u16, refused: &Refused) {
        self.close_channel(channel);
        self.send(Head::of(frames::ERROR, channel), &refused.body());
    }

    // -- requests ---------------------------------------------------------------------------------------------------------

    fn on_frame(&mut self, head: Head, payload: &[u8]) {
        let result = match head.kind {
            frames::REQUEST => self.request(head, payload),
            frames::ACK => self.acknowledged(payload),
            frames::CLOSE => {
                self.close_channel(head.channel);
                if let Some(connection) = &self.connection {
                    self.commands.unsubscribe(connection.number, Some(head.channel), &mut self.looper);
                }
                self.send(Head::of(frames::CLOSE, head.channel), b"");
                Ok(())
            }
            frames::DATA | frames::END | frames::CREDIT => self.continued(head, payload),
            _ => Ok(()),
        };
        if let Err(refused) = result {
            self.refuse(head.channel, &refused);
        }
    }

    fn request(&mut self, head: Head, payload: &[u8]) -> Result<(), Refused> {
        let malformed = |why: String| Refused::invalid(format!("a malformed request: {why}"));
        if self.open.get(&head.channel).map_or(false, |open| !open.is_over()) {
            // Whose the frames behind it are nobody could tell: the refusal ends both.
            return Err(malformed("its channel has one already".to_owned()));
        }
        self.open.remove(&head.channel); // What is over has nothing that would have to be let go of.
        let request = json::parse(payload).map_err(malformed)?;
        let fields = Fields(&request);
        let operation = operations::find(fields.text("op")?)?;
        if operation.is_use {
            self.used();
        }
        (operation.run)(self, head.channel, &fields)
    }

    /// The memory that came with a request, if that names any.
    pub fn memory_of(&mut self, fields: &Fields<'_>) -> Result<Option<OwnedFd>, Refused> {
        let inode = fields.size_or_none("memory")?;
        Ok(inode.zip(self.connection.as_mut()).and_then(|(inode, connection)| connection.take_descriptor(inode)))
    }

    pub fn connection_number(&self) -> u64 {
        self.connection.as_ref().map_or(0, |connection| connection.number)
    }

    pub fn configure(&mut self, _: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let mut environment = fields.variables("environment")?;
        let mut working_dir = fields.text("working_dir")?.to_vec();
        if let Some(around) = &self.around {
            let base = match fields.0.get("base_environment") {
                Some(_) => fields.variables("base_environment")?,
                None => Variables::new(),
            };
            environment = [base, around.environment.clone(), environment].concat();
            let below = if around.directory == b"/" { USUAL_DIRECTORY } else { around.directory.as_slice() };
            working_dir = paths::join(below, &working_dir);
        }
        let user = fields.text_or_none("user")?.unwrap_or(b"").to_vec();
        let nice = fields.int("nice")?;
        let orphan_seconds = fields.number("orphan_timeout_seconds")?;
        let lifetime = fields.number_or_none("max_lifetime_seconds")?;
        let idle = fields.number_or_none("idle_timeout_seconds")?;
        let host_name = host_name::of(fields)?;
        let none = object([]);
        let limits = Fields(fields.0.get("limits").unwrap_or(&none));
        let open_files = limits.size_or_none("open_files")?;
        let group_memory = limits.size_or_none("group_memory")?;
        self.watch.limit(&limits, self.commands.group.is_some())?;
        if !self.configured {
            self.in_memory = InMemory::look();
        }
        if let Some(group) = &mut self.commands.group {
            group.limit = group_memory.unwrap_or(0);
        }
        let now = self.looper.now();
        self.configured = true;
        self.commands.environment = environment;
        self.commands.work_in(&working_dir);
        self.commands.user = user;
        self.commands.nice = nice as i32;
        self.commands.open_files = open_files;
        self.orphan_seconds = orphan_seconds;
        self.look_for_server();
        if let Some(seconds) = lifetime {
            self.lifetime_end = now + seconds;
            self.looper.after(seconds, Call::LiveNoLonger);
        }
        if idle.is_some() {
            self.idle_seconds = idle;
            self.look_for_use();
        }
        host_name.map_or(Ok(()), |name| self.be_named(&name))
    }

    pub fn exec(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        if self.looper.now() >= self.lifetime_end {
            self.end("lifetime", 0.0, None); // Its timer is due in this turn: nothing starts before it.
        }
        let memory = self.memory_of(fields)?;
        let exec_id = fields.text("exec_id")?;
        let offsets = [fields.size("stdout")?, fields.size("stderr")?];
        let spec = fields.0.get("spec").filter(|spec| **spec != Value::Null);
        let spec = spec.map(|value| (value, fingerprint(value)));
        let memory = memory.filter(|_| self.commands.is_new(exec_id));
        let number = self.commands.on_record(exec_id, spec, &mut self.looper, &self.processes)?;
        if let (Some(number), Some(connection)) = (number, &mut self.connection) {
            let mut listener = Listener {
                connection,
                channel,
                offsets,
                waits_for_end: fields.flag_or("together", Some(false))?,
                memory,
                shares_memory: false,
            };
            self.commands.listen(number, &mut listener, &mut self.looper);
        }
        Ok(())
    }

    pub fn expect_input(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let exec_id = fields.text("exec_id")?.to_vec();
        let (offset, eof) = (fields.size("offset")?, fields.flag("eof")?);
        self.commands.find(&exec_id)?;
        self.open.insert(channel, Open::Input { exec_id, offset, eof });
        Ok(())
    }

    pub fn signal(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let number = fields.number_up_to("signal", sys::LAST_SIGNAL as u64)? as i32;
        let key = fields.text_or_none("key")?;
        let command = self.commands.find(fields.text("exec_id")?)?;
        if !self.again.is_done(key) {
            if !self.pause.keeps(command.number, number) {
                command.signal(number);
            }
            self.again.done(key);
        }
        self.reply(channel, &object([]));
        Ok(())
    }

    pub fn resize(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let side = |name: &str| fields.number_up_to(name, u16::MAX.into()).map(|side| side as u16);
        let (width, height) = (side("width")?, side("height")?);
        self.commands.find(fields.text("exec_id")?)?.resize(width, height)?;
        self.reply(channel, &object([]));
        Ok(())
    }

    pub fn cancel(&mut self, channel: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let exec_id = fields.text("exec_id")?;
        self.commands.cancelled(exec_id, &mut self.looper);
        let kill = Kill::new(exec_id, &self.commands);
        let job = Cancel::new(kill, channel, self.connection_number());
        self.start_job(Box::new(job));
        Ok(())
    }

    pub fn cancel_all(&mut self, channel: u16, _: &Fields<'_>) -> Result<(), Refused> {
        let job = CancelAll::new(channel, self.connection_number(), &mut self.commands, &mut self.looper);
        self.start_job(Box::new(job));
        Ok(())
    }

    pub fn stop(&mut self, _: u16, fields: &Fields<'_>) -> Result<(), Refused> {
        let grace = fields.number("grace_seconds")?;
        self.end("stopped", grace, None);
        Ok(())
    }

    pub fn ping(&mut self, channel: u16, _: &Fields<'_>) -> Result<(), Refused> {
        self.reply(channel, &object([]));
        Ok(())
    }

    fn acknowledged(&mut self, payload: &[u8]) -> Result<(), Refused> {
        let said = json::parse(payload).map_err(Refused::invalid)?;
        let fields = Fields(&said);
        let offsets = [fields.size("stdout")?, fields.size("stderr")?];
        let printed = self.commands.confirm(fields.text("exec_id")?, offsets, fields.flag("done")?, &mut self.looper);
        self.freed_much |= printed > LARGE_BYTES as u64;
        Ok(())
    }

    /// A further frame of an open request; late ones of a request that is over mean nothing.
    fn continued(&mut self, head: Head, payload: &[u8]) -> Result<(), Refused> {
        match self.open.get(&head.channel) {
            Some(Open::Input { .. }) if head.kind == frames::DATA => {}
            Some(Open::Input { .. }) | None => return Ok(()),
            Some(_) => return self.continue_transfer(head, payload),
        }
        if let Some(Open::Input { exec_id, offset, eof }) = self.shut(head.channel) {
            let asker = Some((self.connection_number(), head.channel));
            let number = self.commands.find(&exec_id)?.number;
            self.commands.write_input(number, offset, payload.to_vec(), eof, asker, &mut self.looper);
        }
        Ok(())
    }

    /// Takes a request out of those that are open.
    pub fn shut(&mut self, channel: u16) -> Option<Open> {
        let open = self.open.remove(&channel);
        if open.as_ref().map_or(false, Open::is_asked) {
            self.used();
        }
        open
    }

    // -- clocks -----------------------------------------------------------------------------------------------------------

    fn used(&mut self) {
        self.last_call = self.looper.now();
    }

    /// Ends the sandbox once it was out of use for so long. Commands that run count as use, and so does every call that reaches
    /// inside. What a command left behind does not: nobody asked for it any more.
    fn look_for_use(&mut self) {
        let seconds = match self.idle_seconds {
            Some(seconds) => seconds,
            None => return,
        };
        let now = self.looper.now();
        let connected = self.ports.as_ref().map_or(false, |ports| ports.connections > 0);
        let in_call = connected || self.open.values().any(Open::is_use);
        let since = if in_call { now } else { self.last_call.max(self.commands.used_until(now, RESULT_SECONDS)) };
        let left = since + seconds - now;
        if left <= 0.0 {
            self.end("idle", 0.0, None);
        } else {
            self.looper.after(left, Call::LookForUse);
        }
    }

    fn look_for_server(&mut self) {
        if let Some(timer) = self.orphan_timer.take() {
            self.looper.cancel(timer);
        }
        let now = self.looper.now();
        let heard = self.connection.as_ref().map_or(self.last_heard, |connection| connection.last_heard);
        let mut left = heard + self.orphan_seconds - now;
        if left <= 0.0 && now - self.orphan_due > STOOD_STILL_SECONDS {
            // It was this process that stood still, as on a machine that was paused: a server gets its chance to speak.
            left = self.orphan_seconds.min(now - self.orphan_due);
        } else if left <= 0.0 {
            self.end("orphaned", 0.0, None);
            self.wait_for_nobody();
            left = 1.0;
        }
        self.orphan_due = now + left;
        self.orphan_timer = Some(self.looper.after(left, Call::LookForServer));
    }

    /// Whether this turn left memory behind: it is given back once no turn has for a while.
    fn note_memory(&mut self) {
        let passed = self.connection.as_mut().map_or(false, Connection::take_had_much);
        if (mem::take(&mut self.freed_much) || passed) && self.needed_memory.replace(self.looper.now()).is_none() {
            self.looper.after(GIVE_BACK_SECONDS, Call::GiveMemoryBack);
        }
    }

    fn give_memory_back(&mut self) {
        let left = self.needed_memory.map_or(0.0, |needed| needed + GIVE_BACK_SECONDS - self.looper.now());
        if left > 0.0 {
            self.looper.after(left, Call::GiveMemoryBack);
        } else {
            self.needed_memory = None;
            sys::give_memory_back();
        }
    }

    // -- limits -----------------------------------------------------------------------------------------------------------

    fn act(&mut self, act: Act) {
        match act {
            Act::KillAll(why) => self.commands.kill_all(&why, &mut self.looper, &self.processes),
            Act::OutOfMemory(tag, pids) => {
                self.watch.remove_system_v(&self.processes);
                if !tag.map_or(false, |tag| self.commands.out_of_memory(tag)) {
                    for pid in pids {
                        // Who is gone needs none.
                        drop(sys::send_signal(pid, sys::SIGKILL));
                    }
                }
            }
        }
    }

    /// Counts what is on disk.
    pub fn count_disk(&mut self) {
        let not_theirs = self.commands.input_files();
        let pids = self.watch.pids();
        self.watch.disk.begin(pids, not_theirs, &mut self.looper);
        if self.watch.disk.is_counting() {
            self.start_job(Box::new(CountDisk));
        }
    }

    fn reap(&mut self) {
        if self.commands.reap(&mut self.looper, &self.processes) {
            self.looper.after(0.0, Call::Reap);
        }
        self.tell_news();
        self.come_nearer();
    }
}

/// Looks at what is limited.
struct Looks {
    /// Most commands are over before the first look; who means harm could as well wait for a look to be over.
    has_waited: bool,
}

impl Job for Looks {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        if !std::mem::replace(&mut self.has_waited, true) {
            return Step::After(FIRST_LOOK_SECONDS);
        }
        let Supervisor { watch, processes, commands, looper, .. } = supervisor;
        let (step, act) = watch.step(processes, commands, looper);
        if let Some(act) = act {
            supervisor.act(act);
        }
        step
    }
}

struct CountDisk;

impl Job for CountDisk {
    fn step(&mut self, supervisor: &mut Supervisor) -> Step {
        let pids = supervisor.watch.pids();
        let Supervisor { watch, processes, looper, .. } = supervisor;
        let (is_over, passed) = watch.disk.step(processes, &pids, looper);
        if let Some(words) = passed {
            // Whose the files are cannot be told, so it is all of them.
            supervisor.act(Act::KillAll(format!("aviato: killed: the sandbox's limit of {words} is reached")));
        }
        if is_over {
            Step::Done
        } else {
            Step::Again
        }
    }
}

/// Who takes the frames of a connection.
struct Frames<'a> {
    supervisor: &'a mut Supervisor,
    connection: u64,
}

impl Sink for Frames<'_> {
    fn in_pieces(&self, channel: u16) -> bool {
        self.supervisor.open.get(&channel).map_or(false, |open| !matches!(open, Open::Input { .. }))
    }

    fn frame(&mut self, head: Head, payload: &[u8]) {
        // It may have been replaced meanwhile.
        if self.supervisor.connection_number() == self.connection {
            self.supervisor.on_frame(head, payload);
            self.supervisor.tell_news();
        }
    }
}

fn boot_id() -> Vec<u8> {
    let mut text = [0; 64];
    let read = sys::open_at(AT_FDCWD, b"/proc/sys/kernel/random/boot_id", O_RDONLY, 0)
        .and_then(|fd| sys::read_some(&fd, &mut text));
    text[..read.unwrap_or(0)].split(|byte| *byte == b'\n').next().unwrap_or(b"").to_vec()
}
