//! The process that sandboxes are born from: a server asks it by messages, each with the first connection to a sandbox.
//!
//! A request says what the sandbox's place, its ids and its control groups are to be, and by which steps its process 1 is confined
//! (`confine`). The answer carries a descriptor of that process. When the socket closes the zygote ends, and its sandboxes live on.

use std::collections::HashSet;
use std::io;
use std::os::unix::io::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use crate::confine::{id_map, open_known, Confinement, Failure};
use crate::errors::{Fields, Refused};
use crate::frames::{self, Head};
use crate::json::{self, object, Value};
use crate::pool::{layers, Entered, Pools};
use crate::supervisor::{Descent, Descriptors, Supervisor};
use crate::sys::{self, MountChange, AT_FDCWD, O_CREAT, O_DIRECTORY, O_PATH, O_RDONLY, O_WRONLY};

const MOST_MESSAGE_BYTES: usize = 1 << 18;
/// What the messages begin with that are no JSON: a burial, an oblivion, and how processors are shared.
const BURIAL: &[u8] = b"AVB\x02";
const OBLIVION: &[u8] = b"AVB\x03";
const SHARING: &[u8] = b"AVB\x04";
/// Of the head of a burial: what it is, its number, and how many it names.
const BURIAL_BYTES: usize = 12;
const MOST_SENT: usize = 32;
const FIRST_DESCRIPTOR: RawFd = 3;
const REPORT_MILLISECONDS: i32 = 10_000;
/// Of `Given`.
const GIVEN_BYTES: usize = 7;
/// Below a sandbox's own: their descriptors go in one message, and their names in one page of mount options.
const MOST_LAYERS: usize = 160;
/// Where nobody asks for sandboxes no child is held.
const SPARE_NANOSECONDS: u64 = 5_000_000_000;
/// Nobody has asked for so long: making the next one holds up no sandbox that is on its way.
const QUIET_NANOSECONDS: u64 = 10_000_000;
const NAME: &[u8] = b"aviato-supervisor";
const SPARE_NAME: &[u8] = b"aviato-spare";
const ALL_NAMESPACES: u64 = sys::CLONE_NEWUSER
    | sys::CLONE_NEWNS
    | sys::CLONE_NEWPID
    | sys::CLONE_NEWIPC
    | sys::CLONE_NEWUTS
    | sys::CLONE_NEWNET
    | sys::CLONE_NEWCGROUP;

pub struct Zygote {
    control: OwnedFd,
    children: OwnedFd,
    pools: Pools,
    /// Made ahead, while nobody asks.
    spare: Option<(Child, u64)>,
    /// When the next one is made, unless somebody asks before.
    spare_at: Option<u64>,
    /// Whether anybody has asked for a sandbox lately.
    is_wanted: bool,
    /// Its children, and whether others came to it: what the process 1 of a sandbox without namespaces leaves when it is killed.
    own: HashSet<i32>,
    adopts: bool,
}

/// A child that waits to be told which sandbox's process 1 it is.
struct Child {
    pid: i32,
    pidfd: OwnedFd,
    /// It is told here, with all descriptors that it needs.
    told: OwnedFd,
}

/// What a child is told beside the request: which descriptors come with it, in this order.
struct Given {
    ports: bool,
    groups: usize,
    trees: usize,
    content: bool,
    merged: bool,
    place: bool,
    lower: usize,
}

impl Given {
    fn encode(&self) -> [u8; GIVEN_BYTES] {
        let flags = [self.ports, self.content, self.merged, self.place].map(u8::from);
        [flags[0], self.groups as u8, self.trees as u8, flags[1], flags[2], flags[3], self.lower as u8]
    }

    fn decode(bytes: &[u8]) -> Option<Given> {
        match *bytes {
            [ports, groups, trees, content, merged, place, lower] => Some(Given {
                ports: ports != 0,
                groups: groups.into(),
                trees: trees.into(),
                content: content != 0,
                merged: merged != 0,
                place: place != 0,
                lower: lower.into(),
            }),
            _ => None,
        }
    }
}

impl Zygote {
    /// With `gives_ids` it becomes root of a user namespace that has subordinate ids, which the server maps.
    pub fn new(control: OwnedFd, gives_ids: bool) -> io::Result<Zygote> {
        if gives_ids {
            take_subordinate_ids(&control)?;
        } else if sys::effective_user() == 0 {
            match sys::leave_groups() {
                // A root without this right has none to give its sandboxes other ids either.
                Err(error) if sys::number_of(&error) == sys::EPERM => {}
                result => result?,
            }
        }
        // Possession opens keys, whatever the uid: what the server's login session holds (Kerberos tickets, say) stays outside.
        sys::leave_session_keyring()?;
        sys::control(sys::PR_SET_CHILD_SUBREAPER, 1)?;
        sys::control(sys::PR_SET_DUMPABLE, 1)?;
        sys::ignore_interrupts();
        Ok(Zygote {
            control,
            children: sys::hear_of_children()?,
            pools: Pools::default(),
            spare: None,
            spare_at: None,
            is_wanted: false,
            own: HashSet::new(),
            adopts: false,
        })
    }

    /// Serves until the server is gone.
    pub fn run(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; MOST_MESSAGE_BYTES];
        loop {
            let patience = self.expire().unwrap_or(-1);
            let ready = sys::wait_readable(&[&self.control, &self.children], patience);
            if ready[1] {
                // What it says is known: some are dead.
                drop(sys::read_some(&self.children, &mut [0; 1024]));
                while let Ok(Some((pid, _, _))) = sys::wait_any() {
                    self.own.remove(&pid);
                    self.pools.ended(pid);
                }
                self.kill_orphans();
            }
            if !ready[0] && !self.adopts && self.spare.is_none() && self.spare_at.map_or(false, |at| sys::now() >= at) {
                // Without one the next is made when it is asked for.
                self.spare_at = None;
                self.spare = self.bear(None, false).ok().map(|child| (child, sys::now() + SPARE_NANOSECONDS));
            }
            if ready[0] {
                let (count, came) = sys::receive_message(&self.control, &mut buffer)?;
                if count == 0 {
                    self.spare = None;
                    self.pools.processors.remove_all();
                    return Ok(());
                }
                self.serve(&buffer[..count], came)?;
                self.spare_at = self.is_wanted.then(|| sys::now() + QUIET_NANOSECONDS);
            }
        }
    }

    /// Kills what is left of sandboxes without namespaces whose process 1 was killed; their own children come next.
    fn kill_orphans(&self) {
        if !self.adopts {
            return;
        }
        let path = format!("/proc/self/task/{}/children", sys::process_id());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        for pid in text.split_whitespace().filter_map(|word| word.parse().ok()).filter(|pid| !self.own.contains(pid)) {
            // Who is gone needs none.
            drop(sys::send_signal(pid, sys::SIGKILL));
        }
    }

    /// Lets go of what nobody has asked for in a while; in how many milliseconds that is to be done again.
    fn expire(&mut self) -> Option<i32> {
        let milliseconds = |until: u64| (until.saturating_sub(sys::now()) / 1_000_000) as i32 + 1;
        let waited = self.spare_at.filter(|_| self.spare.is_none()).map(milliseconds);
        let mut next = self.pools.expire().into_iter().chain(waited).min();
        if let Some((_, until)) = self.spare {
            let left = until.saturating_sub(sys::now());
            if left == 0 {
                self.spare = None;
                self.is_wanted = false;
            } else {
                next = next.into_iter().chain(Some((left / 1_000_000) as i32 + 1)).min();
            }
        }
        next
    }

    fn serve(&mut self, message: &[u8], came: Vec<OwnedFd>) -> io::Result<()> {
        if message.starts_with(OBLIVION) {
            let gone: Vec<OwnedFd> = numbers_in(message).filter_map(|number| self.pools.layers.take(number)).collect();
            return self.tell_kept(word_at(message, 4), &[], &gone);
        }
        if let Some(directory) = message.strip_prefix(SHARING).and_then(|rest| rest.get(4..)) {
            let directory = directory.split(|byte| *byte == 0).next().unwrap_or(directory);
            self.pools.processors.share(directory, message[4..8] != [0; 4]);
            return Ok(());
        }
        if message.starts_with(BURIAL) {
            return self.bury(message);
        }
        let request = match json::parse(parts_of(message).0) {
            Ok(request) => request,
            Err(why) => {
                return self.tell(&object([("n", 0.into()), ("errno", 0.into()), ("error", why.as_str().into())]), &[])
            }
        };
        let number = request.get("n").cloned().unwrap_or(Value::Int(0));
        self.is_wanted = true;
        match self.create(&request, message, came) {
            Ok((pid, pidfd)) => self.tell(&object([("n", number), ("pid", pid.into())]), &[pidfd.as_raw_fd()]),
            Err(why) => self.tell(&object([("n", number), ("errno", 0.into()), ("error", why.as_str().into())]), &[]),
        }
    }

    /// Tells of which of the dead another sandbox can have the layers.
    fn bury(&mut self, message: &[u8]) -> io::Result<()> {
        let behind = message.get(BURIAL_BYTES + 4 * word_at(message, 8) as usize..).unwrap_or(b"");
        let mut texts = behind.split(|byte| *byte == 0);
        let (mut kept, mut rest) = (Vec::new(), Vec::new());
        for number in numbers_in(message) {
            let (place, other) = match (texts.next(), texts.next()) {
                (Some(place), Some(other)) => (place, other),
                _ => break,
            };
            if sys::enter_directory(place).is_err() {
                sys::leave_directory(); // Nothing of it is here.
            }
            match self.pools.layers.bury(number) {
                Ok(()) if sys::rename(AT_FDCWD, place, AT_FDCWD, other).is_ok() => kept.push(number),
                Ok(()) => rest.extend(self.pools.layers.take(number)),
                Err(held) => rest.extend(held),
            }
        }
        sys::leave_directory();
        self.tell_kept(word_at(message, 4), &kept, &rest)
    }

    /// What holds layers that nobody will have goes to the server: the end of a mount in which much was looked up takes its time.
    fn tell_kept(&self, number: u64, kept: &[u64], rest: &[OwnedFd]) -> io::Result<()> {
        let kept = Value::Array(kept.iter().map(|number| (*number).into()).collect());
        let numbers: Vec<RawFd> = rest.iter().take(MOST_SENT).map(AsRawFd::as_raw_fd).collect();
        self.tell(&object([("n", number.into()), ("kept", kept)]), &numbers)
    }

    fn tell(&self, answer: &Value, descriptors: &[RawFd]) -> io::Result<()> {
        const ECONNRESET: i32 = 104;
        match sys::send_message(&self.control, &answer.to_bytes(), descriptors) {
            // The next message says that the server is gone.
            Err(error) if matches!(sys::number_of(&error), sys::EPIPE | ECONNRESET) => Ok(()),
            result => result,
        }
    }

    /// A child in new namespaces; in a control group of its own, or in one by which processors are shared out.
    fn bear(&mut self, group: Option<&OwnedFd>, stays: bool) -> io::Result<Child> {
        let (told, tells) = sys::message_pair()?;
        let mut namespaces = if stays { 0 } else { ALL_NAMESPACES };
        let entered = if stays { Entered { network: false, group: None } } else { self.pools.enter(group.is_none()) };
        if entered.network {
            namespaces &= !sys::CLONE_NEWNET;
        }
        if group.is_some() {
            // Nobody is let into a group that lies outside of what his namespace shows.
            namespaces &= !sys::CLONE_NEWCGROUP;
        }
        let cloned = sys::clone_into(namespaces, group.or(entered.group.as_ref()));
        match cloned {
            Ok(None) => {
                drop(tells);
                be_born(told, entered.network)
            }
            Ok(Some((pid, pidfd))) => {
                self.pools.leave(pid);
                self.own.insert(pid);
                self.adopts |= stays;
                Ok(Child { pid, pidfd, told: tells })
            }
            Err(error) => {
                self.pools.leave(0);
                Err(error)
            }
        }
    }

    /// Makes the place, and has a child whose ids are mapped be told of it.
    fn create(&mut self, request: &Value, whole: &[u8], came: Vec<OwnedFd>) -> Result<(i32, OwnedFd), String> {
        let fields = Fields(request);
        let wrong = |refused: Refused| String::from_utf8_lossy(&refused.message).into_owned();
        let failed = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let ids = (
            fields.number_up_to("uid", u32::MAX.into()).map_err(wrong)?,
            fields.number_up_to("gid", u32::MAX.into()).map_err(wrong)?,
            fields.size("ids").map_err(wrong)?,
        );
        let (uid, gid) = (ids.0 as u32, ids.1 as u32);
        let place = fields.text("place").map_err(wrong)?;
        let mut came = came.into_iter();
        let misplaced = |error: io::Error| format!("its place {}: {error}", String::from_utf8_lossy(place));
        let connection = came.next().ok_or("no connection came with the request")?;
        let owned = fields.texts("owned").map_err(wrong)?;
        let settings = fields.value("groups").map_err(wrong)?;
        let mut merged = None;
        if let Some(earlier) = fields.text_or_none("earlier").map_err(wrong)? {
            let number = fields.size("earlier_number").map_err(wrong)?;
            let mount = self
                .pools
                .layers
                .take(number)
                .filter(layers::is_sound)
                .ok_or("the layers of an earlier one are gone")?;
            sys::rename(AT_FDCWD, earlier, AT_FDCWD, place).map_err(&misplaced)?;
            merged = Some(mount);
        }
        let is_mapped = fields.flag("mapped").map_err(wrong)?;
        let owner = Owner { uid, gid, is_mapped };
        let (listener, note) = make_place(place, &owned, &owner, merged.is_some()).map_err(&misplaced)?;
        let mut given = vec![connection, listener, note];
        let mut told = Given {
            ports: fields.flag("ports").map_err(wrong)?,
            groups: 0,
            trees: 0,
            content: false,
            merged: merged.is_some(),
            place: is_mapped,
            lower: 0,
        };
        if told.ports {
            given.push(bind_in(place, b"p", true).map_err(&misplaced)?);
        }
        let groups = make_groups(settings, uid).map_err(failed("its control groups"))?;
        told.groups = groups.len();
        given.extend(groups);
        let trees = copy_trees(fields.value("trees").map_err(wrong)?).map_err(failed("a mount"))?;
        told.trees = trees.len();
        given.extend(trees);
        if fields.flag_or("content", Some(false)).map_err(wrong)? {
            let before = given.len();
            given.extend(came.next());
            told.content = given.len() > before;
        }
        given.extend(merged);
        let lower = fields.texts("lower").map_err(wrong)?;
        told.lower = lower.len();
        let seen: Vec<&[u8]> = is_mapped.then_some(place).into_iter().chain(lower.iter().map(Vec::as_slice)).collect();
        if lower.len() > MOST_LAYERS {
            return Err(format!("{} layers below its own, and {MOST_LAYERS} can be", lower.len()));
        }
        let own_group = match first_of(settings).and_then(|first| first.get("supervisors")) {
            Some(Value::Text(path)) => {
                Some(sys::open_at(AT_FDCWD, path, O_PATH | O_DIRECTORY, 0).map_err(failed("its control group"))?)
            }
            _ => None,
        };
        let message = [&told.encode()[..], whole].concat();
        let stays = request.get("descent").map_or(false, |descent| *descent != Value::Null);
        let maps = if stays { None } else { Some(ids) };
        if own_group.is_none() && !stays {
            if let Some((spare, _)) = self.spare.take() {
                match tell_child(&spare, &message, &given, maps, &seen) {
                    Ok(()) => return Ok(self.has_been_told(spare, request, place, owner.on_disk())),
                    // It has been killed, by an administrator or for the machine's memory: another one does it.
                    Err(error) if matches!(sys::number_of(&error), sys::ESRCH | sys::EPIPE | sys::ENOENT) => {}
                    Err(error) => return Err(failed("its ids")(error)),
                }
            }
        }
        let child = self.bear(own_group.as_ref(), stays).map_err(failed("clone"))?;
        match tell_child(&child, &message, &given, maps, &seen) {
            Ok(()) => Ok(self.has_been_told(child, request, place, owner.on_disk())),
            Err(error) => {
                drop(sys::send_signal(child.pid, sys::SIGKILL));
                Err(failed("its ids")(error))
            }
        }
    }

    /// A child is on its way in; its root comes, if it lends that.
    fn has_been_told(&mut self, child: Child, request: &Value, place: &[u8], ids: (u32, u32)) -> (i32, OwnedFd) {
        let Child { pid, pidfd, told } = child;
        if request.get("lends") == Some(&Value::Bool(true)) && sys::enter_directory(place).is_ok() {
            let number = request.get("n").map_or(0, |number| match number {
                Value::Int(number) => *number as u64,
                _ => 0,
            });
            self.pools.layers.wait_for(number, pid, ids, told);
            sys::leave_directory();
        }
        (pid, pidfd)
    }
}

/// Maps the ids of a child, and tells it what it is; with its place and what lies below its layers, seen by its ids, if they are not its own.
fn tell_child(
    child: &Child,
    message: &[u8],
    given: &[OwnedFd],
    ids: Option<(u64, u64, u64)>,
    seen: &[&[u8]],
) -> io::Result<()> {
    if let Some(ids) = ids {
        map_ids(child.pid, ids)?;
    }
    let mut numbers: Vec<RawFd> = given.iter().map(AsRawFd::as_raw_fd).collect();
    let seen = seen_by(child.pid, seen)?;
    numbers.extend(seen.iter().map(AsRawFd::as_raw_fd));
    sys::send_message(&child.told, message, &numbers)
}

/// In the child: waits for what it is to be, takes the steps, then is process 1.
fn be_born(told: OwnedFd, network_is_up: bool) -> ! {
    sys::close_from_but(FIRST_DESCRIPTOR, told.as_raw_fd()); // The zygote's own, of which nothing here lets go.
    drop(sys::set_name(SPARE_NAME)); // Who looks at the machine's processes sees that it is nobody's yet.
    let mut buffer = vec![0; MOST_MESSAGE_BYTES];
    let (count, came) = match sys::receive_message(&told, &mut buffer) {
        Ok((count, came)) if count > GIVEN_BYTES => (count, came),
        _ => sys::exit_now(0), // Nobody wants it.
    };
    // What is not confined lets go of all that it had; this remains to say why.
    let spare = came.first().and_then(|connection| sys::duplicate(connection).ok()).map_or(-1, IntoRawFd::into_raw_fd);
    let request = match of_child(&buffer[GIVEN_BYTES..count]) {
        Ok(request) => request,
        Err(why) => report(spare, &why, None),
    };
    let why = match confined(&request, &buffer[..GIVEN_BYTES], came, (told, network_is_up)) {
        Ok((descriptors, has_ports)) => {
            let born_filter = hexadecimal(request.get("born_filter"));
            let descent = request.get("descent").filter(|descent| **descent != Value::Null).map(descent_of);
            drop((request, buffer));
            match begin(descriptors, has_ports, born_filter, descent) {
                Ok(mut supervisor) => supervisor.run(),
                Err((error, connection)) => report(connection, &format!("the sandbox could not begin: {error}"), None),
            }
        }
        Err(Failure::Step(why)) => format!("the sandbox could not be confined: {why}"),
        Err(Failure::Unfit(why)) => report(spare, &why, Some("mounted_files")),
    };
    report(spare, &why, None)
}

/// A number in a message that is no JSON.
fn word_at(message: &[u8], at: usize) -> u64 {
    message.get(at..at + 4).map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).into())
}

/// Those of requests that a burial or an oblivion names.
fn numbers_in(message: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let most = message.len().saturating_sub(BURIAL_BYTES) / 4;
    (0..most.min(word_at(message, 8) as usize)).map(move |at| word_at(message, BURIAL_BYTES + 4 * at))
}

/// What holds of all that the zygote may be told.
#[cfg(any(test, feature = "fuzz"))]
pub fn check(message: &[u8]) {
    let numbers: Vec<u64> = numbers_in(message).collect();
    assert!(numbers.len() <= message.len() / 4 && numbers.len() as u64 <= word_at(message, 8));
    if let Some(given) = Given::decode(message) {
        let again = Given::decode(&given.encode()).map(|again| again.encode());
        assert_eq!(again, Some(given.encode()));
    }
    if let Ok(request) = of_child(message) {
        assert!(names_of_trees(&request).len() <= message.len());
        let filters = [hexadecimal(request.get("filter")), hexadecimal(request.get("born_filter"))];
        assert!(filters.iter().all(|filter| 2 * filter.len() <= message.len()));
        request.get("descent").map(descent_of);
    }
}

/// A request as the zygote needs it, and behind a zero byte what its child alone does: the plan and the filters.
fn parts_of(message: &[u8]) -> (&[u8], &[u8]) {
    let end = message.iter().position(|byte| *byte == 0).unwrap_or(message.len());
    (&message[..end], message.get(end + 1..).unwrap_or(b""))
}

/// All of a request.
fn of_child(message: &[u8]) -> Result<Value, String> {
    let (head, rest) = parts_of(message);
    match (json::parse(head)?, if rest.is_empty() { object([]) } else { json::parse(rest)? }) {
        (Value::Object(mut members), Value::Object(more)) => {
            members.extend(more);
            Ok(Value::Object(members))
        }
        _ => Err("a request that is no object".to_owned()),
    }
}

fn first_of(list: &Value) -> Option<&Value> {
    match list {
        Value::Array(items) => items.first(),
        _ => None,
    }
}

/// Takes the steps, and gives what process 1 has to have; all else is closed.
fn confined(
    request: &Value,
    given: &[u8],
    came: Vec<OwnedFd>,
    (zygote, network_is_up): (OwnedFd, bool),
) -> Result<(Vec<OwnedFd>, bool), Failure> {
    let step = |what: &'static str| move |error: io::Error| Failure::Step(format!("{what}: {error}"));
    let lacks = || Failure::Step("what it is told lacks something".to_owned());
    sys::set_name(NAME).map_err(step("its name"))?;
    // Everyone inside can read the command line of process 1, and the zygote's tells where the server is installed.
    sys::set_title(NAME);
    let given = Given::decode(given).ok_or_else(lacks)?;
    let mut came = came.into_iter();
    let mut kept: Vec<OwnedFd> = came.by_ref().take(3 + usize::from(given.ports) + given.groups).collect();
    let trees: Vec<OwnedFd> = came.by_ref().take(given.trees).collect();
    let content = if given.content { came.next() } else { None };
    let modern = request.get("modern") == Some(&Value::Bool(true));
    let mut confinement = Confinement::new(zygote, modern, content, hexadecimal(request.get("filter")));
    confinement.network_is_up = network_is_up;
    confinement.stays = request.get("descent").map_or(false, |descent| *descent != Value::Null);
    for (name, tree) in names_of_trees(request).into_iter().zip(trees) {
        confinement.keep(&name, tree);
    }
    if given.merged {
        confinement.keep(b"merged", came.next().ok_or_else(lacks)?);
    }
    if given.place {
        confinement.place = Some(came.next().ok_or_else(lacks)?);
    }
    confinement.lower = came.by_ref().take(given.lower).collect();
    if confinement.lower.len() < given.lower {
        return Err(lacks());
    }
    confinement.execute(request.get("plan").unwrap_or(&Value::Null))?;
    let layer = confinement.kept(b"layer").map_err(step("its layer"))?;
    let sockets = confinement.kept(b"sockets").map_err(step("its sockets"))?;
    if kept.len() < 3 {
        return Err(lacks());
    }
    let others = kept.split_off(3);
    kept.extend([layer, sockets]);
    kept.extend(others);
    kept.extend(confinement.kept(b"asked").ok());
    // From here on their numbers mean others: nobody may let go of what he had.
    std::mem::forget(confinement);
    let numbers: Vec<RawFd> = kept.into_iter().map(IntoRawFd::into_raw_fd).collect();
    let placed = sys::arrange(&numbers, FIRST_DESCRIPTOR).map_err(step("its descriptors"))?;
    Ok((placed, given.ports))
}

/// Of a sandbox without namespaces: the filter of its commands, whether signals to everyone are exact, and the calls whose number is the second
/// argument, where it is asked about those.
pub fn descent_of(descent: &Value) -> (Vec<u8>, bool, Option<Vec<i64>>) {
    let second = match descent.get("asks") {
        Some(Value::Array(calls)) => Some(
            calls
                .iter()
                .filter_map(|call| match call {
                    Value::Int(call) => Some(*call),
                    _ => None,
                })
                .collect(),
        ),
        _ => None,
    };
    (hexadecimal(descent.get("filter")), descent.get("exact") == Some(&Value::Bool(true)), second)
}

fn names_of_trees(request: &Value) -> Vec<Vec<u8>> {
    let name = |tree: &Value| match tree {
        Value::Array(parts) => match parts.first() {
            Some(Value::Text(name)) => name.clone(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    };
    match request.get("trees") {
        Some(Value::Array(trees)) => trees.iter().map(name).collect(),
        _ => Vec::new(),
    }
}

fn begin(
    descriptors: Vec<OwnedFd>,
    has_ports: bool,
    born_filter: Vec<u8>,
    descent: Option<(Vec<u8>, bool, Option<Vec<i64>>)>,
) -> Result<Supervisor, (io::Error, RawFd)> {
    let failed = |error: io::Error| (error, FIRST_DESCRIPTOR);
    let mut given = descriptors.into_iter();
    let (connection, listener, note) = match (given.next(), given.next(), given.next()) {
        (Some(connection), Some(listener), Some(note)) => (connection, listener, note),
        _ => return Err(failed(io::Error::from_raw_os_error(sys::EINVAL))),
    };
    let (layer, sockets) = (given.next(), given.next());
    let ports = if has_ports { given.next() } else { None };
    let descent = descent.map(|(filter, exact, second)| Descent {
        filter,
        exact,
        asked: second.and_then(|second| given.next().map(|asked| (asked, second))),
    });
    let groups = given.collect();
    crate::reserve_standard_streams().map_err(failed)?;
    sys::take_short_turns();
    Supervisor::new(Descriptors {
        connection,
        listener,
        note,
        layer,
        sockets,
        ports,
        groups,
        born_filter,
        descent,
        newcomers: None,
        around: None,
    })
    .map_err(failed)
}

/// Says over the first connection why there is no sandbox, and ends.
pub fn report(connection: RawFd, message: &str, unfit: Option<&str>) -> ! {
    if let Ok(fd) = sys::adopt(connection) {
        say_failed(&fd, message, unfit);
    }
    sys::exit_now(1)
}

/// Tells the server, which hears it before this process is gone.
pub fn say_failed(connection: &OwnedFd, message: &str, unfit: Option<&str>) {
    let body = object([
        ("code", if unfit.is_some() { "VALIDATION".into() } else { "UNAVAILABLE".into() }),
        ("reason", unfit.unwrap_or("start_failed").into()),
        ("is_infrastructure", unfit.is_none().into()),
        ("retryable", false.into()),
        ("message", message.into()),
    ])
    .to_bytes();
    drop(sys::write_all(connection, &[&Head::of(frames::ERROR, 0).encode(body.len())[..], &body].concat()));
    // The server speaks first. Gone before that, this process would be a broken pipe to it, and the report never read.
    if sys::wait_readable(&[connection], REPORT_MILLISECONDS)[0] {
        drop(sys::read_some(connection, &mut [0; 4096]));
    }
}

pub fn hexadecimal(value: Option<&Value>) -> Vec<u8> {
    let digits = match value {
        Some(Value::Text(digits)) => digits.as_slice(),
        _ => b"",
    };
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Whose a sandbox's directory is.
struct Owner {
    uid: u32,
    gid: u32,
    /// What is in it has on the disk the ids that a store of images has, and the sandbox sees it by a mount that makes them its own: what it
    /// leaves can be a layer as it lies there.
    is_mapped: bool,
}

impl Owner {
    /// Whose its layer is there.
    fn on_disk(&self) -> (u32, u32) {
        if self.is_mapped {
            (0, 0)
        } else {
            (self.uid, self.gid)
        }
    }
}

/// A sandbox's directory: a listening address, a note that is locked as long as it lives, directories that its id owns.
///
/// Nobody comes in but the server and that id, and it cannot change who does: it passes by its group. Where it is mapped not even that id
/// does, since programs in it that are set-uid root would be so outside of the mount; the group tells a later server whose it is.
///
/// One that `is_there` was an earlier sandbox's.
fn make_place(place: &[u8], owned: &[Vec<u8>], owner: &Owner, is_there: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let is_another = owner.uid != sys::effective_user();
    if is_there {
        sys::unlink(AT_FDCWD, &crate::paths::join(place, b"s"))?;
    } else {
        let passes = is_another && !owner.is_mapped;
        sys::make_directory(AT_FDCWD, place, if passes { 0o710 } else { 0o700 })?;
    }
    if is_another && !is_there {
        sys::own(AT_FDCWD, place, None, Some(owner.gid))?;
    }
    let (uid, gid) = owner.on_disk();
    for name in owned {
        let path = crate::paths::join(place, name);
        sys::make_directory(AT_FDCWD, &path, 0o755)?;
        if (uid, gid) != (sys::effective_user(), sys::effective_group()) {
            sys::own(AT_FDCWD, &path, Some(uid), Some(gid))?;
        }
    }
    let note = sys::open_at(
        AT_FDCWD,
        &crate::paths::join(place, b"note"),
        O_WRONLY | sys::O_APPEND | sys::O_TRUNC | O_CREAT,
        0o600,
    )?;
    sys::lock(&note)?;
    Ok((bind_in(place, b"s", false)?, note))
}

/// A Unix socket in a sandbox's directory, where nobody inside can see it. A path of one letter is never too long for a socket.
pub fn bind_in(place: &[u8], name: &[u8], of_messages: bool) -> io::Result<OwnedFd> {
    sys::enter_directory(place)?;
    let bound = sys::bind_here(name, of_messages);
    sys::leave_directory();
    bound
}

/// The control groups of a sandbox. Given are for version 1 how often memory ran out, the peak, and each list of tasks; for version
/// 2 the events and the directory.
fn make_groups(settings: &Value, uid: u32) -> io::Result<Vec<OwnedFd>> {
    let malformed = || io::Error::from_raw_os_error(sys::EINVAL);
    let groups = match settings {
        Value::Array(groups) => groups,
        _ => return Err(malformed()),
    };
    let mut paths = Vec::new();
    for group in groups {
        let path = Fields(group).text("path").map_err(|_| malformed())?;
        sys::make_directory(AT_FDCWD, path, 0o777)?;
        if let Some(Value::Array(files)) = group.get("files") {
            for file in files {
                match file {
                    Value::Array(parts) => match &parts[..] {
                        [Value::Text(name), Value::Text(value), Value::Bool(needed)] => {
                            set(&crate::paths::join(path, name), value, *needed)?;
                        }
                        _ => return Err(malformed()),
                    },
                    _ => return Err(malformed()),
                }
            }
        }
        paths.push(path);
    }
    let first = match paths.first() {
        Some(first) => *first,
        None => return Ok(Vec::new()),
    };
    let open = |path: &[u8], name: &[u8], flags: i32| sys::open_at(AT_FDCWD, &crate::paths::join(path, name), flags, 0);
    if groups[0].get("supervisors").is_some() {
        // Process 1 starts commands in there, and it is the kernel that asks whether it may.
        sys::own(AT_FDCWD, &crate::paths::join(first, b"cgroup.procs"), Some(uid), None)?;
        let directory = sys::open_at(AT_FDCWD, first, O_PATH | O_DIRECTORY, 0)?;
        return Ok(vec![open(first, b"memory.events", O_RDONLY)?, directory]);
    }
    let mut opened =
        vec![open(first, b"memory.oom_control", O_RDONLY)?, open(first, b"memory.max_usage_in_bytes", O_RDONLY)?];
    for path in paths {
        opened.push(open(path, b"tasks", O_WRONLY)?);
    }
    Ok(opened)
}

fn set(path: &[u8], value: &[u8], needed: bool) -> io::Result<()> {
    let fd = match sys::open_at(AT_FDCWD, path, O_WRONLY, 0) {
        Err(error) if sys::number_of(&error) == sys::ENOENT && !needed => return Ok(()),
        opened => opened?,
    };
    match sys::write_some(&fd, value) {
        Err(error) if needed || sys::number_of(&error) != sys::EINVAL => Err(error),
        _ => Ok(()),
    }
}

/// Mounts that the real root makes: the sandbox's id may not be able to look into where they lie.
fn copy_trees(trees: &Value) -> io::Result<Vec<OwnedFd>> {
    let malformed = || io::Error::from_raw_os_error(sys::EINVAL);
    let mut made = Vec::new();
    for tree in match trees {
        Value::Array(trees) => trees,
        _ => return Err(malformed()),
    } {
        let parts = match tree {
            Value::Array(parts) => &parts[..],
            _ => return Err(malformed()),
        };
        let (path, attributes, known) = match parts {
            [_, Value::Text(path), Value::Int(attributes), Value::Array(known)] => (path, *attributes as u64, known),
            _ => return Err(malformed()),
        };
        let fd = match known[..] {
            [Value::Int(device), Value::Int(inode)] if inode != 0 => {
                let directory = open_known(path, device as u64, inode as u64)?;
                sys::copy_mount(directory.as_raw_fd(), b"", true)?
            }
            _ => sys::copy_mount(AT_FDCWD, path, true)?,
        };
        let change = MountChange { attributes, recursive: true, private: true, user_namespace: None };
        sys::change_mount(&fd, change)?;
        made.push(fd);
    }
    Ok(made)
}

/// Maps ids of the machine, from these on, to those of a child's user namespace from 0 on.
pub fn map_ids(pid: i32, (uid, gid, ids): (u64, u64, u64)) -> io::Result<()> {
    let write = |name: &str, content: &[u8]| {
        let fd = sys::open_at(AT_FDCWD, format!("/proc/{pid}/{name}").as_bytes(), O_WRONLY, 0)?;
        sys::write_some(&fd, content).map(drop)
    };
    if ids == 1 {
        write("setgroups", b"deny")?;
    }
    write("uid_map", &id_map(uid, ids))?;
    write("gid_map", &id_map(gid, ids))
}

/// Mounts of directories in which files belong to the ids of a child.
pub fn seen_by(pid: i32, paths: &[impl AsRef<[u8]>]) -> io::Result<Vec<OwnedFd>> {
    if paths.is_empty() {
        return Ok(Vec::new());
    }
    let namespace = sys::open_at(AT_FDCWD, format!("/proc/{pid}/ns/user").as_bytes(), O_RDONLY, 0)?;
    let seen = |path: &[u8]| {
        let tree = sys::copy_mount(AT_FDCWD, path, false)?;
        let change = MountChange {
            attributes: sys::MOUNT_ATTR_IDMAP,
            recursive: false,
            private: true,
            user_namespace: Some(&namespace),
        };
        sys::change_mount(&tree, change)?;
        Ok(tree)
    };
    paths.iter().map(|path| seen(path.as_ref())).collect()
}

/// Is root of a user namespace that has nobody else.
pub fn become_root_of_own_id() -> io::Result<()> {
    let (uid, gid) = (u64::from(sys::effective_user()), u64::from(sys::effective_group()));
    sys::leave_for_new(sys::CLONE_NEWUSER)?;
    map_ids(sys::process_id(), (uid, gid, 1))
}

/// Is root of a user namespace that has them; the server maps them.
pub fn take_subordinate_ids(control: &OwnedFd) -> io::Result<()> {
    let none = || io::Error::new(io::ErrorKind::PermissionDenied, "no ids were mapped");
    sys::leave_for_new(sys::CLONE_NEWUSER)?;
    sys::send_message(control, b"map", &[])?;
    let mut said = [0; 16];
    let (count, _) = sys::receive_message(control, &mut said)?;
    if &said[..count] != b"mapped" {
        return Err(none());
    }
    sys::leave_groups()
}
