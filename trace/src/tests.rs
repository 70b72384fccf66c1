//! Traces as they are begun, written down and passed on.

use tracing::Instrument;
use tracing::instrument::WithSubscriber;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry;

use super::*;

/// A subscriber of a process called `by`, and what it wrote down.
fn subscriber(by: &'static str) -> (Traces, impl tracing::Subscriber + Send + Sync) {
    let traces = Traces::default();
    (traces.clone(), registry().with(layer(&traces, by)))
}

fn steps(traces: &Traces) -> Vec<(String, String, u32, bool)> {
    let [trace] = &traces.list(None)[..] else { panic!("not one trace: {traces:?}") };
    trace.steps.iter().map(|step| (step.by.clone(), step.name.clone(), step.depth, step.end_us.is_some())).collect()
}

fn seen(by: &str, name: &str, depth: u32, has_ended: bool) -> (String, String, u32, bool) {
    (by.to_owned(), name.to_owned(), depth, has_ended)
}

#[test]
fn steps_are_within_those_around_them_whatever_spans_are_between() {
    let (traces, subscriber) = subscriber("agent");
    tracing::subscriber::with_default(subscriber, || {
        let trace = begin("create");
        trace.in_scope(|| {
            about("sbx1");
            step("check").in_scope(|| ());
            tracing::info_span!("request").in_scope(|| {
                step("gather").in_scope(|| {
                    step("files").in_scope(|| passed("monitor", "restore", 5, 7));
                });
            });
        });
        assert_eq!(traces.list(Some("sbx1")).len(), 1);
        assert!(traces.list(Some("sbx2")).is_empty());
        let open = seen("agent", "create", 0, false);
        assert_eq!(steps(&traces)[0], open);
        drop(trace);
    });

    let expected = [
        seen("agent", "create", 0, true),
        seen("agent", "check", 1, true),
        seen("agent", "gather", 1, true),
        seen("agent", "files", 2, true),
        seen("monitor", "restore", 3, true),
    ];
    assert_eq!(steps(&traces), expected);
    let trace = &traces.list(None)[0];
    assert_eq!((trace.steps[4].start_us, trace.steps[4].end_us), (5, Some(7)));
    assert!(trace.steps[0].start_us <= trace.steps[1].start_us && trace.steps[3].end_us <= trace.steps[0].end_us);
}

#[test]
fn steps_of_what_happens_at_the_same_time_are_told_one_thing_after_the_other() {
    let (traces, subscriber) = subscriber("agent");
    tracing::subscriber::with_default(subscriber, || {
        begin("fork").in_scope(|| {
            let (one, two) = (step("one"), step("two"));
            one.in_scope(|| step("gather").in_scope(|| ()));
            two.in_scope(|| step("gather").in_scope(|| ()));
            one.in_scope(|| passed("guest", "wake", 1, 2));
        });
    });

    let expected = [
        seen("agent", "fork", 0, true),
        seen("agent", "one", 1, true),
        seen("agent", "gather", 2, true),
        seen("guest", "wake", 2, true),
        seen("agent", "two", 1, true),
        seen("agent", "gather", 2, true),
    ];
    assert_eq!(steps(&traces), expected);
}

#[tokio::test]
async fn a_task_goes_on_with_the_trace_of_its_span() {
    let (traces, subscriber) = subscriber("api");
    async {
        let task = async { step("there").in_scope(|| ()) };
        tokio::spawn(task.instrument(begin("create")).with_current_subscriber()).await.unwrap();
    }
    .with_subscriber(subscriber)
    .await;

    assert_eq!(steps(&traces), [seen("api", "create", 0, true), seen("api", "there", 1, true)]);
}

#[test]
fn a_trace_goes_on_in_the_next_process() {
    let ((here, api), (there, agent)) = (subscriber("api"), subscriber("agent"));
    let traceparent = tracing::subscriber::with_default(api, || begin("create").in_scope(traceparent)).unwrap();
    tracing::subscriber::with_default(agent, || begin_within(Some(&traceparent), "create").in_scope(|| ()));

    assert_eq!(here.list(None)[0].id, there.list(None)[0].id);
    let [version, id, parent, flags] = traceparent.split('-').collect::<Vec<_>>()[..] else { panic!("{traceparent}") };
    assert_eq!((version, id.len(), parent.len(), flags), ("00", 32, 16, "01"));
}

#[test]
fn what_names_no_trace_begins_one() {
    let (traces, subscriber) = subscriber("agent");
    let zero = format!("00-{}-{}-01", "0".repeat(32), "1".repeat(16));
    let upper = format!("00-{}-{}-01", "A".repeat(32), "1".repeat(16));
    let future = format!("ff-{}-{}-01", "a".repeat(32), "1".repeat(16));
    tracing::subscriber::with_default(subscriber, || {
        for text in
            [None, Some(""), Some("00-12-34-01"), Some(zero.as_str()), Some(upper.as_str()), Some(future.as_str())]
        {
            drop(begin_within(text, "create"));
        }
    });

    let traces = traces.list(None);
    assert_eq!(traces.len(), 6);
    assert!(traces.iter().all(|trace| trace.id.len() == 32 && !trace.id.contains("0".repeat(32).as_str())));
    assert!(traces.iter().all(|trace| !trace.id.starts_with("AAA") && !trace.id.starts_with("aaa")));
}

#[test]
fn the_newest_are_kept_and_each_is_bounded() {
    let (traces, subscriber) = subscriber("agent");
    tracing::subscriber::with_default(subscriber, || {
        for number in 0..300 {
            begin("create").in_scope(|| about(&format!("sbx{number}")));
        }
        begin("long").in_scope(|| (0..1000).for_each(|_| step("again").in_scope(|| ())));
    });

    let traces = traces.list(None);
    assert_eq!((traces.len(), traces[0].steps.len()), (256, 640));
    assert_eq!((traces[1].sandbox.as_deref(), traces[255].sandbox.as_deref()), (Some("sbx299"), Some("sbx45")));
}

#[test]
fn traces_that_end_are_told_to_one_follower_who_may_be_slow() {
    let (traces, subscriber) = subscriber("api");
    let ended = traces.follow(2).unwrap();
    assert!(traces.follow(2).is_none());
    tracing::subscriber::with_default(subscriber, || {
        let open = begin("open");
        for name in ["first", "second", "dropped"] {
            begin(name).in_scope(|| step("within").in_scope(|| ()));
        }
        assert_eq!((traces.take_dropped(), traces.take_dropped()), (1, 0));
        let names: Vec<_> = ended.try_iter().map(|trace| trace.steps[0].name.clone()).collect();
        assert_eq!(names, ["first", "second"]);
        drop(open);
    });

    let last = ended.try_recv().unwrap();
    assert_eq!((last.steps[0].name.as_str(), last.steps[0].end_us.is_some()), ("open", true));
}

#[test]
fn outside_of_traces_there_is_nothing() {
    let (traces, subscriber) = subscriber("agent");
    tracing::subscriber::with_default(subscriber, || {
        step("lost").in_scope(|| passed("monitor", "lost", 1, 2));
        about("sbx1");
        assert_eq!(traceparent(), None);
    });
    assert!(traces.list(None).is_empty());
    assert_eq!(traceparent(), None, "without a subscriber");
}

#[test]
fn what_is_no_part_of_a_trace_is_not_enabled_for_it() {
    let (_, subscriber) = subscriber("agent");
    tracing::subscriber::with_default(subscriber, || {
        assert!(!step("lost").is_disabled());
        assert!(!tracing::enabled!(target: "hyper", tracing::Level::ERROR));
        assert!(tracing::error_span!("request").is_disabled());
    });
}
