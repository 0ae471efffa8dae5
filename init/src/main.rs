//! `aviato-init`: process 1 of a sandbox. One static file, so that any image can carry it.

#![deny(unsafe_code)]

mod accounts;
mod archive;
mod base64;
mod by_number;
mod carried;
mod cases;
mod command;
mod commands;
mod confine;
mod connection;
mod dial;
mod directory;
mod ending;
mod errors;
mod event_loop;
mod files;
mod frames;
#[cfg(any(test, feature = "fuzz"))]
mod fuzz;
mod host_name;
mod idempotency;
mod input;
mod json;
mod keys;
mod killing;
mod layer;
mod limits;
mod networked;
mod newcomers;
mod operations;
mod output;
mod paths;
mod pausing;
mod pool;
mod ports;
mod probe;
mod process_tree;
mod programs;
mod relayed;
mod rest;
mod sha256;
mod shared_memory;
mod spawn;
mod subreaper;
mod successive;
mod supervisor;
mod sys;
mod zygote;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::io::{OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use supervisor::{Descriptors, Supervisor};

const APPARMOR_RESTRICTION: &str = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
const APPARMOR_PROFILE: &str = "aviato";
/// Of a command line: the profile need not be entered again.
const ENTERED: &str = "--in-profile";
const USAGE: &str = "\
usage: aviato-init zygote --control FD [--gives-ids] [--copy FD]
       aviato-init serve --connection FD --listener FD --note FD
       aviato-init serve --place DIRECTORY
       aviato-init serve --port NUMBER
       aviato-init install PATH [--key FILE]
       aviato-init layer --into FD [--owners] [--below FD]… [--most-bytes N] [--most-files N]
                         [--gives-ids --control FD]
       aviato-init layer --count FD [--gives-ids --control FD]
       aviato-init layer --pack FD [--owners] [--gives-ids --control FD]
       aviato-init probe --scratch DIRECTORY [--uid N] [--groups DIRECTORY]
       aviato-init --version

zygote makes sandboxes for a server, whom it hears by a socket of messages. With --gives-ids it asks to be
mapped subordinate ids first. serve is process 1 of a sandbox that somebody else has made; with --place it
finds there what it has to do, since container engines pass no descriptors on; with --port the server that
proves the key in the variable AVIATO_KEY, or in the file that AVIATO_KEY_FILE names and that it removes, says
so over the network. install copies this program to a path; with --key it leaves in a new file the key of the
pod AVIATO_POD_UID, which it makes of the key in AVIATO_POOL_KEY.
layer reads one layer of an image, a tar, and makes of it a directory that overlayfs can be given; it prints
JSON. With --count it prints the same of such a directory that is there already. With --pack it writes the
tar of one, and JSON of what went wrong to its standard error. probe tries what sandboxes
need of the kernel, and prints JSON: on the file system of an empty directory, for a uid of the machine
(under root) and where control groups of version 2 are made.

serve --port has no note. It ends with 0 where it was stopped, 81 at the end of its lifetime, 82 unused, 83
where no server came, 84 with its main command, and 85 where the plan failed; the reason of that stands in
its standard error and in the file that the variable AVIATO_TERMINATION_LOG names.

Each FD is a descriptor that it is started with:
  --control     a socket of messages to a server
  --connection  a stream socket to the server that made the sandbox
  --listener    a listening stream socket for later servers
  --note        a file for its last words
  --copy        what it was run from, which it closes
  --into        an empty directory, which becomes the top of the layer
  --below       the top of a layer under it, the uppermost first: directories that the tar leaves out are made as
                they are there
  --count, --pack  the top of a layer
";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let said = match arguments.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        Some(("serve", flags)) => serve(flags),
        Some(("install", [path])) => install(path),
        Some(("install", [path, flag, file])) if flag == "--key" => {
            install(path).and_then(|()| keys::leave(file).map_err(|why| format!("aviato-init install: {why}")))
        }
        Some(("zygote", flags)) => zygote(flags),
        Some(("layer", flags)) => layer(flags),
        Some(("probe", flags)) => probe(flags),
        #[cfg(any(test, feature = "fuzz"))]
        Some(("fuzz", flags)) => fuzz::main(flags),
        Some(("--version", [])) => {
            println!("aviato-init {}", env!("CARGO_PKG_VERSION"));
            return;
        }
        Some(("--help" | "-h", [])) => {
            print!("{USAGE}");
            return;
        }
        _ => Err(USAGE.to_owned()),
    };
    if let Err(why) = said {
        eprintln!("{}", why.trim_end());
        std::process::exit(2);
    }
}

fn serve(flags: &[String]) -> Result<(), String> {
    if sys::process_id() != 1 {
        let why = "it must be process 1: it kills everything else that it sees when the sandbox ends";
        return Err(format!("aviato-init serve: {why}"));
    }
    if let Some(place) = flags.iter().position(|flag| flag == "--place").and_then(|at| flags.get(at + 1)) {
        return carried::serve(place).map_err(|why| format!("aviato-init serve: {why}"));
    }
    if let Some(port) = flags.iter().position(|flag| flag == "--port").and_then(|at| flags.get(at + 1)) {
        return networked::serve(port).map_err(|why| format!("aviato-init serve: {why}"));
    }
    let given = Descriptors {
        connection: descriptor(flags, "--connection")?,
        listener: descriptor(flags, "--listener")?,
        note: descriptor(flags, "--note")?,
        layer: None,
        sockets: None,
        ports: None,
        groups: Vec::new(),
        born_filter: Vec::new(),
        descent: None,
        newcomers: None,
        around: None,
    };
    let began = reserve_standard_streams().and_then(|()| {
        sys::keep_capabilities();
        sys::ignore_interrupts();
        sys::take_short_turns();
        Supervisor::new(given)
    });
    match began {
        Ok(mut supervisor) => supervisor.run(),
        Err(error) => Err(format!("aviato-init serve: it could not begin: {error}")),
    }
}

/// Copies this program to where others start it: whole, or not at all.
fn install(path: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("aviato-init install {path}: {error}");
    let beside = format!("{path}.new");
    fs::copy("/proc/self/exe", &beside).map_err(failed)?;
    fs::set_permissions(&beside, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}

fn zygote(flags: &[String]) -> Result<(), String> {
    enter_profile("zygote", flags); // First: what is adopted is closed when it begins anew.
    let control = descriptor(flags, "--control")?;
    let gives_ids = flags.iter().any(|flag| flag == "--gives-ids");
    if flags.iter().any(|flag| flag == "--copy") {
        drop(descriptor(flags, "--copy")?);
    }
    zygote::Zygote::new(control, gives_ids)
        .and_then(|mut zygote| zygote.run())
        .map_err(|error| format!("aviato-init zygote: {error}"))
}

fn layer(flags: &[String]) -> Result<(), String> {
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let gives_ids = has("--gives-ids");
    if gives_ids || has("--pack") || has("--count") {
        enter_profile("layer", flags);
    }
    if has("--pack") {
        return pack_layer(flags, has("--owners"), gives_ids);
    }
    let values = |name: &'static str| {
        flags.iter().enumerate().filter(move |(_, flag)| *flag == name).map(|(at, _)| flags.get(at + 1))
    };
    let most = |name: &'static str| match values(name).next() {
        Some(text) => text.and_then(|text| text.parse().ok()).ok_or_else(|| format!("{name} needs a number\n{USAGE}")),
        None => Ok(u64::MAX),
    };
    let control = if gives_ids { Some(descriptor(flags, "--control")?) } else { None };
    if has("--count") {
        return say(&layer::count(&descriptor(flags, "--count")?, control.as_ref()));
    }
    let limits = layer::Limits { bytes: most("--most-bytes")?, files: most("--most-files")? };
    let settings = layer::Settings {
        into: descriptor(flags, "--into")?,
        below: values("--below").map(|text| adopted("--below", text)).collect::<Result<_, _>>()?,
        owners: has("--owners"),
        limits,
    };
    let stream = sys::adopt(0).map_err(|error| format!("standard input: {error}"))?;
    say(&layer::run(&stream, settings, control.as_ref()))
}

/// Prints what has become of a layer; the exit status says whether one has.
fn say(unpacked: &Result<layer::Unpacked, archive::Trouble>) -> Result<(), String> {
    println!("{}", String::from_utf8_lossy(&layer::answer(unpacked).to_bytes()));
    if unpacked.is_err() {
        std::process::exit(1);
    }
    Ok(())
}

fn pack_layer(flags: &[String], owners: bool, gives_ids: bool) -> Result<(), String> {
    let control = if gives_ids { Some(descriptor(flags, "--control")?) } else { None };
    let top = descriptor(flags, "--pack")?;
    let stream = sys::adopt(1).map_err(|error| format!("standard output: {error}"))?;
    if let Err(trouble) = layer::pack(stream, top, owners, control.as_ref()) {
        eprintln!("{}", String::from_utf8_lossy(&layer::error(&trouble, "pack_failed").to_bytes()));
        std::process::exit(1);
    }
    Ok(())
}

fn probe(flags: &[String]) -> Result<(), String> {
    enter_profile("probe", flags);
    let given = |name: &str| flags.iter().position(|flag| flag == name).and_then(|at| flags.get(at + 1));
    let scratch = given("--scratch").ok_or_else(|| format!("--scratch needs a directory\n{USAGE}"))?;
    let number = |text: &String| text.parse().map_err(|_| format!("--uid {text}: it is no number of a user"));
    let uid = given("--uid").map(number).transpose()?;
    println!(
        "{}",
        String::from_utf8_lossy(&probe::probe(scratch, uid, given("--groups").map(String::as_str)).to_bytes())
    );
    Ok(())
}

/// Where AppArmor takes the capabilities out of user namespaces: start again under the profile that allows them.
///
/// The profile is named and attached to no path, since the program may be a copy in memory. Without it we go on as we are, and
/// what is missing is found by `aviato doctor`.
fn enter_profile(word: &str, flags: &[String]) {
    let restricted = fs::read_to_string(APPARMOR_RESTRICTION).map_or(false, |text| text.trim() == "1");
    if !restricted || flags.iter().any(|flag| flag == ENTERED) {
        return;
    }
    if fs::write("/proc/self/attr/apparmor/exec", format!("exec {APPARMOR_PROFILE}")).is_ok() {
        // It returns where there is no such profile.
        let _ = Command::new("/proc/self/exe").arg0("aviato-init").arg(word).args(flags).arg(ENTERED).exec();
    }
}

/// A descriptor by the number that a flag has.
fn descriptor(flags: &[String], name: &str) -> Result<OwnedFd, String> {
    adopted(name, flags.iter().position(|flag| flag == name).and_then(|at| flags.get(at + 1)))
}

fn adopted(name: &str, text: Option<&String>) -> Result<OwnedFd, String> {
    let number: RawFd =
        text.and_then(|text| text.parse().ok()).ok_or_else(|| format!("{name} needs a number\n{USAGE}"))?;
    sys::adopt(number).map_err(|error| format!("{name} {number}: {error}"))
}

/// Takes the lowest numbers, so that no descriptor of ours stands where a command's own are put.
fn reserve_standard_streams() -> io::Result<()> {
    loop {
        let fd = sys::open_at(sys::AT_FDCWD, b"/dev/null", sys::O_RDWR, 0)?;
        if std::os::unix::io::AsRawFd::as_raw_fd(&fd) > 8 {
            return Ok(());
        }
        std::mem::forget(fd);
    }
}
