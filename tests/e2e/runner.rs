//! Which tests run, two at a time or alone, and what is said of them.
//!
//! ```text
//!   inventory ─▶ shared tests, two at a time ─▶ tests that must be alone ─▶ those that failed, once more
//!                                                                      ─▶ inventory again: MODULE::leaves_nothing_behind
//! ```
//!
//! Each test has a thread and a runtime of its own, both called as the test is, so that a panic says whose it is. A test
//! also fails when, while it ran, agent or API ended without having been told to, or something panicked in one of them;
//! of two that ran side by side, both.
//!
//! Where processors are emulated, the emulator at times kills a guest that did nothing wrong. There a few tests that fail are run
//! once more, alone; one that passes then is named as unstable at the end.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use support::Host;
use support::internet::Internet;

/// Tests that run side by side.
const AT_A_TIME: usize = 2;
/// The test that every module has.
const LEAVES_NOTHING: &str = "leaves_nothing_behind";

/// The tests of one module. Made by [`tests!`].
pub(crate) struct Module {
    /// Its path, with the crate's name.
    pub(crate) path: &'static str,
    /// Those that may share the host with one other.
    pub(crate) shared: &'static [Test],
    /// Those that need it for themselves.
    pub(crate) alone: &'static [Test],
}

pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn(),
}

/// Names the tests of a module. One that is not named is dead code, which does not compile.
macro_rules! tests {
    (@list $($test:ident),*) => {
        &[$($crate::runner::Test { name: stringify!($test), run: || $crate::runner::block_on($test()) }),*]
    };
    (shared: [$($shared:ident),* $(,)?], alone: [$($alone:ident),* $(,)?] $(,)?) => {
        pub(crate) const TESTS: $crate::runner::Module = $crate::runner::Module {
            path: module_path!(),
            shared: tests!(@list $($shared),*),
            alone: tests!(@list $($alone),*),
        };
    };
}

/// Runs something to its end, on a runtime of its own whose threads are called as this one is.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let name = thread::current().name().unwrap_or("test").to_owned();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name(name).enable_all().build();
    runtime.expect("a runtime").block_on(work)
}

impl Module {
    /// How its tests are called: `MODULE::TEST`.
    fn name_of(&self, test: &str) -> String {
        let module = self.path.rsplit("::").next().unwrap_or(self.path);
        format!("{module}::{test}")
    }
}

/// The tests of a module that were asked for.
struct Part {
    shared: Vec<Named>,
    alone: Vec<Named>,
    /// The name of the test that compares the inventories, if that is among them.
    leaves_nothing: Option<String>,
}

struct Named {
    name: String,
    run: fn(),
}

/// The tests that were asked for.
pub(crate) struct Selection(Vec<Part>);

impl Selection {
    /// Those of `modules` whose name has one of `filters` in it, or, if `exact`, is one of them, and none of `skip`.
    ///
    /// # Errors
    /// A sentence, when a filter matches nothing or nothing is left.
    pub(crate) fn new(modules: &[Module], filters: &[String], exact: bool, skip: &[String]) -> Result<Self, String> {
        let matches = |name: &str, filter: &String| if exact { name == filter } else { name.contains(filter.as_str()) };
        let is_chosen = |name: &str| {
            (filters.is_empty() || filters.iter().any(|filter| matches(name, filter)))
                && !skip.iter().any(|skipped| name.contains(skipped.as_str()))
        };
        let chosen = |module: &Module, tests: &[Test]| -> Vec<Named> {
            let named = tests.iter().map(|test| Named { name: module.name_of(test.name), run: test.run });
            named.filter(|test| is_chosen(&test.name)).collect()
        };
        let parts = modules.iter().map(|module| Part {
            shared: chosen(module, module.shared),
            alone: chosen(module, module.alone),
            leaves_nothing: Some(module.name_of(LEAVES_NOTHING)).filter(|name| is_chosen(name)),
        });
        let selection = Self(parts.collect());
        for filter in filters {
            if !selection.names().any(|name| matches(name, filter)) {
                return Err(format!("no test is called {filter:?} (see --list)"));
            }
        }
        if selection.names().next().is_none() {
            return Err("no test is left to run (see --list)".to_owned());
        }
        Ok(selection)
    }

    /// Their names, in the order in which they begin.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|part| {
            let tests = part.shared.iter().chain(&part.alone).map(|test| test.name.as_str());
            tests.chain(part.leaves_nothing.as_deref())
        })
    }

    /// Runs them, and says what became of each as soon as it is known. Those that have not begun after `limit` are left out; of
    /// those that fail, `second_runs` are run once more.
    pub(crate) fn run(&self, limit: Option<Duration>, second_runs: usize) -> ExitCode {
        println!("running {} tests", self.names().count());
        let (host, report) = (Host::shared(), Report::new(limit, second_runs));
        println!("agent and API write to {}", host.log().display());
        // Before the first inventory: it stays until the end.
        Internet::shared();
        for part in &self.0 {
            if report.is_over() {
                part.leave_out(&report);
            } else {
                part.run(host, &report);
            }
        }
        report.finish()
    }
}

impl Part {
    fn leave_out(&self, report: &Report) {
        let names = self.shared.iter().chain(&self.alone).map(|test| &test.name).chain(&self.leaves_nothing);
        names.for_each(|name| report.leave_out(name));
    }

    fn run(&self, host: &'static Host, report: &Report) {
        let has_tests = !self.shared.is_empty() || !self.alone.is_empty();
        let inventory = || block_on(host.inventory());
        let before = self.leaves_nothing.as_ref().filter(|_| has_tests).map(|name| named(name, inventory));

        let queue = Mutex::new(self.shared.iter());
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
        thread::scope(|scope| {
            for _ in 0..AT_A_TIME {
                scope.spawn(|| {
                    while let Some(test) = next() {
                        report.run_in_time(host, &test.name, test.run);
                    }
                });
            }
        });
        for test in &self.alone {
            report.run_in_time(host, &test.name, test.run);
        }
        for test in self.shared.iter().chain(&self.alone).filter(|test| report.takes_back(&test.name)) {
            println!("test {} is run once more, alone", test.name);
            report.run(host, &test.name, test.run);
        }

        let Some(name) = &self.leaves_nothing else { return };
        report.run(host, name, || {
            let before = before.expect("another test of the module runs first").expect("an inventory was taken");
            block_on(host.holds_what_it_held(&before));
        });
    }
}

/// What became of the tests so far.
struct Report {
    began: Instant,
    /// How long tests may begin.
    limit: Option<Duration>,
    /// How many tests may be run once more.
    second_runs: usize,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    /// Those that failed and were run once more.
    again: Vec<String>,
    left_out: usize,
}

impl Report {
    fn new(limit: Option<Duration>, second_runs: usize) -> Self {
        Self { began: Instant::now(), limit, second_runs, tally: Mutex::default() }
    }

    fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.began.elapsed() >= limit)
    }

    fn leave_out(&self, name: &str) {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).left_out += 1;
        println!("test {name} ... ignored, for want of time");
    }

    fn run(&self, host: &'static Host, name: &str, test: impl FnOnce() + Send) {
        let (watch, began) = (host.watch(), Instant::now());
        let ended = named(name, test);
        let undisturbed = watch.finish();
        let seconds = began.elapsed().as_secs_f64();
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(reason) = &undisturbed {
            eprintln!("{name}: {reason}");
        }
        if ended.is_ok() && undisturbed.is_ok() {
            tally.passed += 1;
            println!("test {name} ... ok ({seconds:.1} s)");
        } else {
            tally.failed.push(name.to_owned());
            println!("test {name} ... FAILED ({seconds:.1} s)");
        }
    }

    /// Whether this test failed and is to be run once more; its failure is forgotten then.
    fn takes_back(&self, name: &str) -> bool {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = tally.failed.iter().position(|failed| failed == name) else { return false };
        let takes = tally.again.len() < self.second_runs;
        if takes {
            let name = tally.failed.remove(index);
            tally.again.push(name);
        }
        takes
    }

    fn run_in_time(&self, host: &'static Host, name: &str, test: impl FnOnce() + Send) {
        if self.is_over() { self.leave_out(name) } else { self.run(host, name, test) }
    }

    fn finish(self) -> ExitCode {
        let Tally { passed, failed, again, left_out } = self.tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        for name in &failed {
            println!("failed: {name}");
        }
        for name in again.iter().filter(|name| !failed.contains(name)) {
            println!("unstable: {name}");
        }
        let (verdict, seconds) = (if failed.is_empty() { "ok" } else { "FAILED" }, self.began.elapsed().as_secs());
        let failures = failed.len();
        println!(
            "test result: {verdict}. {passed} passed; {failures} failed; {left_out} ignored; finished in {seconds} s"
        );
        if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Runs something on a thread that is called `name`, to its end or its panic.
fn named<T: Send>(name: &str, run: impl FnOnce() -> T + Send) -> thread::Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, run).expect("a thread");
        thread.join()
    })
}
