//! Who sees when sandboxes really run, and asks nobody: many times a second it looks at their records' files and their monitors'
//! processes, and whether an agent takes connections.
//!
//! A run begins and ends with a record that says so. The agent reads its clock, begins the record's file, and ends it once it may
//! count: so the file's own times say within moments when that was, and the looks before and after it that no other record was
//! between them. Where a machine ended and no agent was there, the time of another file says when one noted last that it ran. As
//! both ends of a run are seen a moment late, its length is seen more exactly than either.

use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use jiff::Timestamp;
use support::{Host, Sighting};

use crate::comparison::{CLOCK_MS, Run};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Between the agent's reading of the clock and the beginning of the file, beside the longest pause between two looks: where the
/// observer did not get to run, the agent did not either.
const BEFORE_WRITTEN_MS: i64 = 250;
/// How long an agent takes to notice that a monitor has ended, beside twice the longest pause between two looks: where the observer
/// waits for a processor, so does the agent.
const NOTICED_MS: i64 = 1000;
/// Between an agent's last note and its end, which is seen when it no longer takes connections.
const GONE_MS: i64 = 250;

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> i64 {
    Timestamp::now().as_millisecond()
}

/// Looks until it is told to end.
pub(crate) struct Observer {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

impl Observer {
    /// Begins to look at the shared host, on which nothing runs yet.
    pub(crate) fn start() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            let mut seen = Seen::default();
            while !is_over.load(Ordering::Relaxed) {
                seen.add(&Look::take());
                thread::sleep(LOOK);
            }
            seen
        });
        Self { ends, thread }
    }

    /// All that was seen. Blocks for a moment.
    ///
    /// # Errors
    /// Where the observer itself has failed.
    pub(crate) fn end(self) -> anyhow::Result<Seen> {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the observer of usage panicked"))
    }
}

/// One look at the whole host.
struct Look {
    /// From its first moment to its last.
    time: RangeInclusive<i64>,
    agent_listens: bool,
    /// When an agent noted last what runs.
    noted_ms: Option<i64>,
    sandboxes: Vec<Sighting>,
}

impl Look {
    fn take() -> Self {
        let (host, begin) = (Host::shared(), now_ms());
        let (agent_listens, noted_ms, sandboxes) = (host.agent_listens(), host.noted_ms(), host.sightings());
        Self { time: begin..=now_ms(), agent_listens, noted_ms, sandboxes }
    }
}

/// What was seen in all looks.
#[derive(Default)]
pub(crate) struct Seen {
    /// By sandbox and monitor.
    machines: BTreeMap<(String, String), Machine>,
    /// When an agent listened, from the first look to the last that found one.
    agents: Vec<RangeInclusive<i64>>,
    /// When agents noted what ran.
    notes: Vec<i64>,
    last: Option<RangeInclusive<i64>>,
    pub(crate) looks: usize,
    /// Between the beginnings of two looks, at most.
    pub(crate) longest_pause_ms: i64,
}

/// A machine of a sandbox.
struct Machine {
    /// The beginning of the last look at which it was not its team's yet.
    before_ms: i64,
    /// When the first record was written that has it be its team's.
    ready: Option<RangeInclusive<i64>>,
    /// The beginning of the last look that found it alive.
    alive_ms: i64,
    /// The last moment of the last look at which it was being saved.
    saved_ms: i64,
    /// The last moment of the first look that found it dead.
    dead_ms: Option<i64>,
    over: Option<Over>,
}

/// A machine is its team's no more.
#[derive(Clone)]
struct Over {
    /// The last moment of the look that found it so.
    found_ms: i64,
    /// When the record was written that says so; where it is gone already, the same.
    written_ms: RangeInclusive<i64>,
}

impl Seen {
    fn add(&mut self, look: &Look) {
        let (begin, end) = (*look.time.start(), *look.time.end());
        let before_ms = self.last.as_ref().map_or(begin, |last| *last.start());
        let pause_ms = begin - before_ms;
        self.see_agent(look);
        if look.noted_ms != self.notes.last().copied() {
            self.notes.extend(look.noted_ms);
        }
        for Sighting { sandbox, written_ms, monitor } in &look.sandboxes {
            let Some(monitor) = monitor else { continue };
            let machine = self.machines.entry((sandbox.clone(), monitor.id.clone())).or_insert(Machine {
                before_ms,
                ready: None,
                alive_ms: before_ms,
                saved_ms: i64::MIN,
                dead_ms: None,
                over: None,
            });
            if monitor.is_ready {
                machine.ready.get_or_insert_with(|| written_ms.clone());
            } else if machine.ready.is_none() {
                machine.before_ms = begin;
            }
            // After its run it is paused, and waits for its end.
            if monitor.is_ready || machine.ready.is_none() {
                if monitor.lives {
                    machine.alive_ms = begin;
                } else {
                    machine.dead_ms.get_or_insert(end);
                }
            }
            if monitor.is_being_saved {
                machine.saved_ms = end;
            }
        }
        for ((sandbox, id), machine) in self.machines.iter_mut().filter(|(_, machine)| machine.over.is_none()) {
            let sighting = look.sandboxes.iter().find(|sighting| sighting.sandbox == *sandbox);
            let monitor = sighting.and_then(|sighting| sighting.monitor.as_ref()).filter(|monitor| monitor.id == *id);
            // One that was never ready is over once it is gone.
            if !monitor.is_some_and(|monitor| monitor.is_ready || machine.ready.is_none()) {
                let written_ms = sighting.map_or(end..=end, |sighting| {
                    (*sighting.written_ms.start()).min(end)..=(*sighting.written_ms.end()).min(end)
                });
                machine.over = Some(Over { found_ms: end, written_ms });
            }
        }
        self.looks += 1;
        self.longest_pause_ms = self.longest_pause_ms.max(pause_ms);
        self.last = Some(look.time.clone());
    }

    fn see_agent(&mut self, look: &Look) {
        let last = self.last.as_ref().map_or(i64::MIN, |last| *last.end());
        match self.agents.last_mut().filter(|agent| *agent.end() == last) {
            Some(agent) if look.agent_listens => *agent = *agent.start()..=*look.time.end(),
            None if look.agent_listens => self.agents.push(look.time.clone()),
            _ => {}
        }
    }

    /// The runs of all machines, given when which monitors were killed.
    pub(crate) fn runs(&self, kills: &HashMap<String, i64>) -> Vec<Run> {
        let machines = self.machines.iter();
        machines.map(|((sandbox, id), machine)| self.run(sandbox, machine, kills.get(id).copied())).collect()
    }

    fn run(&self, sandbox: &str, machine: &Machine, killed_ms: Option<i64>) -> Run {
        let sandbox = sandbox.to_owned();
        let last_ms = self.last.as_ref().map_or(machine.alive_ms, |last| *last.end());
        let over = machine.over.clone().unwrap_or(Over { found_ms: last_ms, written_ms: last_ms..=last_ms });
        let Some(written_ms) = &machine.ready else {
            // It may have been its team's after one look and before the next.
            let some_time = machine.before_ms.min(machine.alive_ms) - self.before_written_ms()..=over.found_ms;
            return Run {
                sandbox,
                is_certain: false,
                began: some_time.clone(),
                ended: some_time,
                last_seen: None,
                noted_ms: None,
                most_ms: self.longest_pause_ms + self.before_written_ms(),
                late_ms: self.late_ms(),
            };
        };
        // A record that was begun before the look is the first that says so; another may have been between two looks.
        let earliest = |written_ms: &RangeInclusive<i64>, look_ms: i64| {
            look_ms.min(*written_ms.start()) - self.before_written_ms()
        };
        let began = earliest(written_ms, machine.before_ms)..=written_ms.end() + self.late_ms();
        let died_ms = killed_ms.or(machine.dead_ms);
        let first = earliest(&over.written_ms, killed_ms.unwrap_or(machine.alive_ms));
        let noticed_ms = died_ms.map_or(i64::MAX, |died_ms| self.noticed_by(died_ms, machine));
        let last = noticed_ms.min(*over.written_ms.end());
        let ended = first..=last.max(first) + self.late_ms();
        let last_seen = self.last_seen(machine, &over, died_ms).map(|seen| (*seen.start()).min(first)..=*seen.end());
        let most_ms = ended.end() - began.start();
        let noted_ms = last_seen.as_ref().map(|_| self.noted_before(&over).unwrap_or(*written_ms.end()));
        Run { sandbox, is_certain: true, began, ended, last_seen, noted_ms, most_ms, late_ms: self.late_ms() }
    }

    /// How much earlier than the agent's reading of the clock the times of a file may be that it wrote afterwards: files have those of
    /// the kernel's last tick, and where the observer did not get to run, ticks were late too.
    fn late_ms(&self) -> i64 {
        CLOCK_MS + self.longest_pause_ms
    }

    /// By when the agent knows of a machine's end. One that saves it learns of that afterwards, one that was away when it
    /// is there.
    fn noticed_by(&self, died_ms: i64, machine: &Machine) -> i64 {
        let agent = self.agents.iter().find(|agent| *agent.end() >= died_ms);
        let is_there = agent.map_or(i64::MAX / 2, |agent| *agent.start());
        died_ms.max(machine.saved_ms).max(is_there) + self.noticed_after_ms()
    }

    fn before_written_ms(&self) -> i64 {
        BEFORE_WRITTEN_MS + self.longest_pause_ms
    }

    fn noticed_after_ms(&self) -> i64 {
        NOTICED_MS + 2 * self.longest_pause_ms
    }

    /// When a machine may have been seen last that ended while no agent was there, or before one had written that down;
    /// nothing where one was there all the time.
    fn last_seen(&self, machine: &Machine, over: &Over, died_ms: Option<i64>) -> Option<RangeInclusive<i64>> {
        let died_ms = died_ms?;
        let was_there =
            |agent: &RangeInclusive<i64>| *agent.start() <= machine.alive_ms && *agent.end() >= over.found_ms;
        if self.agents.iter().any(was_there) {
            return None;
        }
        let first = self.noted_before(over).map_or(machine.before_ms, |noted_ms| noted_ms - self.before_written_ms());
        // What was not noticed yet is noted with all others.
        let was_away = self.agents.iter().all(|agent| !agent.contains(&died_ms));
        let last = if was_away { died_ms } else { died_ms.max(machine.saved_ms) + self.noticed_after_ms() };
        Some(first.min(last)..=last + CLOCK_MS)
    }

    /// The last note of the agents before the one that found a machine ended.
    fn noted_before(&self, over: &Over) -> Option<i64> {
        let agent = self.agents.iter().rev().find(|agent| *agent.end() < over.found_ms)?;
        self.notes.iter().rev().find(|noted_ms| **noted_ms <= agent.end() + GONE_MS).copied()
    }
}

#[cfg(test)]
mod tests {
    use nix::unistd::Pid;
    use support::Monitor;

    use super::*;

    /// What the record of the only sandbox says.
    #[derive(Clone, Copy, PartialEq)]
    enum Says {
        Creating,
        Ready,
        Checkpointing,
        Stopped,
    }
    use Says::{Checkpointing, Creating, Ready, Stopped};

    /// Of looks from 10 s on, every 50 ms: until when the record says what, written when, with a monitor that lives or not.
    type Part = (i64, Says, i64, bool);

    /// What is seen of that, with agents that listen at these times.
    fn seen(parts: &[Part], agents: &[RangeInclusive<i64>]) -> Seen {
        let (mut seen, mut at) = (Seen::default(), 10_000);
        for (until, says, written_ms, lives) in parts {
            while at < *until {
                seen.add(&look(at, *says, *written_ms..=*written_ms, *lives, agents));
                at += 50;
            }
        }
        seen
    }

    /// A look at that moment.
    fn look(at: i64, says: Says, written_ms: RangeInclusive<i64>, lives: bool, agents: &[RangeInclusive<i64>]) -> Look {
        let monitor = Monitor {
            id: "mon1".to_owned(),
            pid: Pid::from_raw(1),
            lives,
            is_ready: matches!(says, Ready | Checkpointing),
            is_being_saved: says == Checkpointing,
        };
        let monitor = (says != Stopped).then_some(monitor);
        let sighting = Sighting { sandbox: "sbx1".to_owned(), written_ms, monitor };
        let agent_listens = agents.iter().any(|agent| agent.contains(&at));
        let noted_ms = agents.iter().filter_map(|agent| noted(agent, at)).max();
        Look { time: at..=at + 2, agent_listens, noted_ms, sandboxes: vec![sighting] }
    }

    /// When an agent noted last by `at` what ran, if it has: two seconds after its beginning, and then every five.
    fn noted(agent: &RangeInclusive<i64>, at: i64) -> Option<i64> {
        let since = at.min(*agent.end()) - (agent.start() + 2000);
        (since >= 0).then(|| agent.start() + 2000 + since / 5000 * 5000)
    }

    fn run(seen: &Seen, killed_ms: Option<i64>) -> Run {
        let kills = killed_ms.map(|at| ("mon1".to_owned(), at)).into_iter().collect();
        let mut runs = seen.runs(&kills);
        assert_eq!(runs.len(), 1);
        runs.remove(0)
    }

    const ALWAYS: [RangeInclusive<i64>; 1] = [0..=i64::MAX];

    #[test]
    fn a_run_has_the_times_of_the_records_that_begin_and_end_it() {
        let seen = seen(
            &[(11_000, Creating, 9000, true), (20_000, Ready, 10_990, true), (20_100, Stopped, 19_980, true)],
            &ALWAYS,
        );
        let run = run(&seen, None);
        assert!(run.is_certain);
        assert_eq!((run.began, run.ended, run.last_seen), (10_650..=11_090, 19_650..=20_080, None));
        assert_eq!((run.most_ms, seen.longest_pause_ms), (20_080 - 10_650, 50));
    }

    #[test]
    fn a_record_that_waited_for_the_disk_was_written_when_its_file_says() {
        let parts = [(12_000, Creating, 9000, true), (20_000, Ready, 10_500, true), (20_100, Stopped, 19_000, true)];
        let run = run(&seen(&parts, &ALWAYS), None);
        assert_eq!((run.began, run.ended), (10_200..=10_600, 18_700..=19_100));
    }

    #[test]
    fn a_record_that_was_written_ahead_may_be_of_the_time_when_it_was_begun() {
        let mut seen = seen(&[(20_000, Ready, 9000, true)], &ALWAYS);
        seen.add(&look(20_000, Stopped, 18_000..=19_980, true, &ALWAYS));
        assert_eq!(run(&seen, None).ended, 17_700..=20_080);
    }

    #[test]
    fn one_that_was_killed_ran_until_then_and_the_agent_notices_soon() {
        let parts = [(20_000, Ready, 9000, true), (25_000, Ready, 9000, false), (25_100, Stopped, 24_990, true)];
        let run = run(&seen(&parts, &ALWAYS), Some(19_970));
        assert_eq!((run.ended, run.last_seen), (19_670..=21_170, None));
    }

    #[test]
    fn an_agent_that_saves_a_machine_notices_its_end_afterwards() {
        let parts = [
            (20_000, Ready, 9000, true),
            (21_000, Checkpointing, 19_990, false),
            (24_000, Ready, 20_990, false),
            (24_100, Stopped, 23_990, true),
        ];
        let run = run(&seen(&parts, &ALWAYS), Some(19_970));
        assert_eq!(run.ended, 19_670..=20_952 + 1100 + 100);
    }

    #[test]
    fn one_that_was_killed_while_the_agent_was_away_ran_until_it_was_noted_at_least() {
        let parts = [(22_000, Ready, 9000, true), (24_000, Ready, 9000, false), (26_000, Stopped, 23_990, true)];
        let run = run(&seen(&parts, &[0..=19_999, 25_000..=99_999]), Some(21_970));
        assert_eq!(run.last_seen, Some(17_000 - 300..=21_970 + 50));
        assert_eq!(run.ended, 21_670..=24_090, "or the next agent saw it die");
    }

    #[test]
    fn an_agent_that_was_hardly_there_noted_nothing() {
        let parts = [(24_000, Ready, 9000, true), (26_000, Ready, 9000, false), (30_000, Stopped, 25_990, true)];
        let agents = [0..=14_999, 20_000..=20_500, 29_000..=99_999];
        let run = run(&seen(&parts, &agents), Some(23_970));
        assert_eq!((*run.last_seen.unwrap().start(), run.noted_ms), (12_000 - 300, Some(12_000)));
    }

    #[test]
    fn one_that_was_never_seen_to_be_ready_was_so_between_two_looks_or_not_at_all() {
        let parts = [(12_000, Creating, 9000, true), (12_100, Stopped, 11_990, true)];
        let run = run(&seen(&parts, &ALWAYS), None);
        assert!(!run.is_certain);
        assert_eq!((run.began, run.most_ms), (11_650..=12_002, 350));
    }
}
