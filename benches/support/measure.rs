//! CPU time and peak memory, of this thread and of child processes.
//!
//! A child's peak RSS starts at that of the process it was forked from, and `RUSAGE_CHILDREN` sums up all children.
//! So every measured program is started by a small process of its own: this executable again, which has touched
//! nothing yet. See [`intercept`].

use std::ffi::{OsStr, OsString};
use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

const VARIABLE: &str = "FATWHEEL_BENCH_MEASURE";

/// CPU seconds of this thread so far.
pub(crate) fn thread_seconds() -> f64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock");
    now.num_nanoseconds() as f64 / 1e9
}

/// One run of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// Seconds from start to end.
    pub(crate) wall: f64,
    /// CPU seconds in user mode.
    pub(crate) user: f64,
    /// CPU seconds in the kernel.
    pub(crate) system: f64,
    /// Peak resident set in bytes, mapped files included.
    pub(crate) peak: u64,
    /// CPU seconds that other processes and the hypervisor took meanwhile, to 10 ms.
    pub(crate) others: f64,
    /// Whether it succeeded.
    pub(crate) success: bool,
}

impl Run {
    pub(crate) fn cpu(&self) -> f64 {
        self.user + self.system
    }

    /// CPU seconds that `cores` had to give while it ran: all but what others took.
    pub(crate) fn available(&self, cores: usize) -> f64 {
        (self.wall * cores as f64 - self.others).max(self.cpu())
    }
}

/// To be called first in `main`: does the measuring if this process is the small one between.
pub(crate) fn intercept() {
    if std::env::var_os(VARIABLE).is_none() {
        return;
    }
    let mut arguments = std::env::args_os().skip(1);
    let program = arguments.next().expect("a program to run");
    let busy = busy_seconds();
    let start = Instant::now();
    let status = Command::new(program).args(arguments).stdout(Stdio::null()).status();
    let wall = start.elapsed().as_secs_f64();
    let busy = busy_seconds() - busy;
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).expect("Linux has this");
    let seconds = |time: nix::sys::time::TimeVal| time.num_microseconds() as f64 / 1e6;
    let (user, system) = (seconds(usage.user_time()), seconds(usage.system_time()));
    let success = status.is_ok_and(|status| status.success());
    let others = (busy - user - system).max(0.0);
    println!("{wall} {user} {system} {} {others} {}", usage.max_rss() << 10, u8::from(success));
    #[expect(clippy::exit, reason = "the process that measures has nothing else to do")]
    std::process::exit(0);
}

/// Runs `program` and waits for it. Its input is `input`; its messages pass through.
pub(crate) fn run(
    program: &str,
    arguments: &[impl AsRef<OsStr>],
    input: impl Into<Stdio>,
) -> io::Result<Run> {
    let child = command(program, arguments)?.stdin(input).stdout(Stdio::piped()).spawn()?;
    parse(&child.wait_with_output()?.stdout)
}

/// The command that measures `program`; [`parse`] reads what it prints.
pub(crate) fn command(program: &str, arguments: &[impl AsRef<OsStr>]) -> io::Result<Command> {
    let arguments: Vec<OsString> = arguments.iter().map(|argument| argument.as_ref().to_owned()).collect();
    let mut command = Command::new(std::env::current_exe()?);
    command.env(VARIABLE, "1").arg(program).args(arguments);
    Ok(command)
}

/// Reads what the small process between has printed.
pub(crate) fn parse(output: &[u8]) -> io::Result<Run> {
    let text = String::from_utf8_lossy(output);
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [wall, user, system, peak, others, success] = numbers[..] else {
        return Err(io::Error::other(format!("the measuring process said {text:?}")));
    };
    Ok(Run { wall, user, system, peak: peak as u64, others, success: success == 1.0 })
}

/// CPU seconds that all processors spent on anything but idling, since the machine started.
fn busy_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<f64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest time is in user time already.
    let busy: f64 =
        ticks.iter().take(8).enumerate().filter(|(n, _)| !matches!(n, 3 | 4)).map(|(_, t)| t).sum();
    busy / 100.0 // USER_HZ, fixed by Linux's interface
}
