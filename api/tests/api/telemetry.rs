//! What a collector of OpenTelemetry gets: a real HTTP server that decodes the protobuf.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use sandpiper_api::telemetry::{Exporter, Settings};
use sandpiper_trace::Traces;
use serde_json::json;
use tokio::net::TcpListener;
use tracing_subscriber::layer::SubscriberExt;

use crate::support::Host;

/// What came, as it came.
#[derive(Debug, Default)]
struct Received {
    traces: Vec<Bytes>,
    metrics: Vec<Bytes>,
    refuse: bool,
}

type Shared = Arc<Mutex<Received>>;

/// A collector, and its address.
async fn collector() -> (Shared, String) {
    async fn take(shared: &Shared, headers: &HeaderMap, keep: impl FnOnce(&mut Received)) -> StatusCode {
        assert_eq!(headers["content-type"], "application/x-protobuf");
        let mut received = shared.lock().unwrap();
        if received.refuse {
            return StatusCode::SERVICE_UNAVAILABLE;
        }
        keep(&mut received);
        StatusCode::OK
    }
    let shared = Shared::default();
    let router = Router::new()
        .route(
            "/otlp/v1/traces",
            post(async |State(shared): State<Shared>, headers: HeaderMap, body: Bytes| {
                take(&shared, &headers, |received| received.traces.push(body)).await
            }),
        )
        .route(
            "/otlp/v1/metrics",
            post(async |State(shared): State<Shared>, headers: HeaderMap, body: Bytes| {
                take(&shared, &headers, |received| received.metrics.push(body)).await
            }),
        )
        .with_state(Arc::clone(&shared));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/otlp", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, router).await });
    (shared, endpoint)
}

fn attribute<'a>(span: &'a Span, key: &str) -> Option<&'a str> {
    let value = span.attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()?;
    let Value::StringValue(text) = value else { return None };
    Some(text)
}

#[tokio::test]
async fn a_collector_gets_the_spans_of_a_create_and_the_metrics_and_no_secret() {
    let (host, (shared, endpoint)) = (Host::new().await, collector().await);
    let traces = Traces::default();
    let settings = Settings { endpoint: Some(endpoint), ..Settings::default() };
    let mut exporter = Exporter::new(&settings, &traces, host.service()).unwrap().unwrap();
    // Of the whole process, for a request goes on in tasks of its own.
    let subscriber = tracing_subscriber::registry().with(sandpiper_trace::layer(&traces, "api"));
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let body = json!({"template": "base", "envs": {"PASSWORD": "hunter2"}, "metadata": {"note": "private words"}});
    let created = host.create(body).await.expect(201);

    // A request's span ends a moment after its response.
    while shared.lock().unwrap().traces.is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        exporter.send_all().await;
    }

    let received = shared.lock().unwrap();
    let request = ExportTraceServiceRequest::decode(received.traces[0].clone()).unwrap();
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert!(resource.attributes.iter().any(|attribute| attribute.key == "service.name"));
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    let of_this = |span: &&Span| attribute(span, "sandpiper.sandbox.id") == created["id"].as_str();
    let spans: Vec<_> = spans.iter().filter(of_this).collect();
    let root = spans.iter().find(|span| span.parent_span_id.is_empty()).unwrap();
    assert_eq!(root.name, "POST /v1/sandboxes");
    assert!(spans.len() > 2 && spans.iter().all(|span| span.trace_id == root.trace_id), "{spans:#?}");
    assert!(spans.iter().all(|span| span.end_time_unix_nano >= span.start_time_unix_nano));
    let hour = 3600 * 1_000_000_000;
    let now = u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap();
    assert!(root.start_time_unix_nano > now - hour && root.end_time_unix_nano <= now);

    let request = ExportMetricsServiceRequest::decode(received.metrics[0].clone()).unwrap();
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    let sandboxes = metrics.iter().find(|metric| metric.name == "sandpiper_api_sandboxes").unwrap();
    let Some(Data::Gauge(gauge)) = &sandboxes.data else { panic!("{sandboxes:?}") };
    assert_eq!(gauge.data_points.len(), 7, "one for each state");
    let all: Vec<u8> = received.traces.iter().chain(&received.metrics).flatten().copied().collect();
    let all = String::from_utf8_lossy(&all);
    let token = created["session"]["access_token"].as_str().unwrap();
    assert!(["hunter2", "private words", token, &host.write].iter().all(|secret| !all.contains(secret)));
}

#[tokio::test]
async fn what_a_collector_does_not_take_is_dropped_and_counted_and_no_request_waits() {
    let (host, (shared, endpoint)) = (Host::new().await, collector().await);
    let traces = Traces::default();
    let settings = Settings { endpoint: Some(endpoint), ..Settings::default() };
    let service = host.service();
    let mut exporter = Exporter::new(&settings, &traces, service.clone()).unwrap().unwrap();
    shared.lock().unwrap().refuse = true;
    let end_traces = |number: usize| {
        let subscriber = tracing_subscriber::registry().with(sandpiper_trace::layer(&traces, "api"));
        tracing::subscriber::with_default(subscriber, || {
            (0..number).for_each(|_| drop(sandpiper_trace::begin("change")))
        });
    };
    let flood = sandpiper_api::telemetry::WAITING + 7;
    end_traces(flood);

    exporter.send_all().await;
    shared.lock().unwrap().refuse = false;
    end_traces(2);
    exporter.send_all().await;

    let counts = &service.telemetry;
    assert_eq!(counts.dropped_traces.get(), u64::try_from(flood).unwrap());
    assert_eq!((counts.sent_traces.get(), counts.failed_requests.get()), (2, 2));
}

#[tokio::test]
async fn nothing_is_sent_where_no_collector_is_set_and_the_last_is_sent_at_the_end() {
    let (host, (shared, endpoint)) = (Host::new().await, collector().await);
    let traces = Traces::default();
    assert!(Exporter::new(&Settings::default(), &traces, host.service()).unwrap().is_none());
    let settings = Settings { endpoint: Some(endpoint), interval_seconds: 3600 };
    let exporter = Exporter::new(&settings, &traces, host.service()).unwrap().unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let exporting = tokio::spawn(exporter.run(stopped));

    stop.send(true).unwrap();

    tokio::time::timeout(Duration::from_secs(30), exporting).await.unwrap().unwrap();
    assert_eq!(shared.lock().unwrap().metrics.len(), 1);
}
