//! Traces as spans.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use sandpiper_protocol::trace::{Step, Trace};
use sha2::{Digest, Sha256};

use super::text;

/// All steps of `traces`, a span each; the clock of their times was 0 at `epoch_us`, in microseconds since 1970.
pub(super) fn request(resource: Resource, traces: &[Trace], epoch_us: u64) -> ExportTraceServiceRequest {
    let spans = traces.iter().flat_map(|trace| spans(trace, epoch_us)).collect();
    let scope = InstrumentationScope { name: "sandpiper".to_owned(), ..InstrumentationScope::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
    let resource_spans = ResourceSpans { resource: Some(resource), scope_spans, ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }
}

fn spans(trace: &Trace, epoch_us: u64) -> Vec<Span> {
    let Some(trace_id) = unhex(&trace.id) else { return Vec::new() };
    let nanos = |us: u64| epoch_us.saturating_add(us).saturating_mul(1000);
    let end = trace.steps.first().and_then(|step| step.end_us).unwrap_or_default();
    // Of each depth the span that began last: whatever is deeper and follows is within it.
    let mut above: Vec<Vec<u8>> = Vec::new();
    let steps = trace.steps.iter().enumerate().map(|(number, step)| {
        let Step { name, by, depth, start_us, end_us } = step;
        let span_id = span_id(&trace_id, number);
        above.truncate(usize::try_from(*depth).unwrap_or(usize::MAX));
        let parent_span_id = above.last().cloned().unwrap_or_default();
        above.push(span_id.clone());
        let mut attributes = vec![text("sandpiper.process", by)];
        attributes.extend(trace.sandbox.iter().map(|sandbox| text("sandpiper.sandbox.id", sandbox)));
        let kind = if number == 0 { SpanKind::Server } else { SpanKind::Internal };
        Span {
            trace_id: trace_id.clone(),
            span_id,
            parent_span_id,
            name: name.clone(),
            kind: kind.into(),
            start_time_unix_nano: nanos(*start_us),
            // What goes on after the whole has ended is told as far as that.
            end_time_unix_nano: nanos(end_us.unwrap_or(end).max(*start_us)),
            attributes,
            ..Span::default()
        }
    });
    steps.collect()
}

/// The same for the same step, whoever sends it.
fn span_id(trace_id: &[u8], number: usize) -> Vec<u8> {
    let digest = Sha256::new().chain_update(trace_id).chain_update(number.to_le_bytes()).finalize();
    digest[..8].to_vec()
}

fn unhex(id: &str) -> Option<Vec<u8>> {
    let number = u128::from_str_radix(id, 16).ok().filter(|_| id.len() == 32)?;
    Some(number.to_be_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_spans_within_those_around_them_and_have_wall_times() {
        let step =
            |name: &str, depth, start_us, end_us| Step { name: name.into(), by: "api".into(), depth, start_us, end_us };
        let trace = Trace {
            id: "0af7651916cd43dd8448eb211c80319c".into(),
            sandbox: Some("sbx1".into()),
            steps: vec![
                step("POST /v1/sandboxes", 0, 10, Some(50)),
                step("handler", 1, 12, Some(48)),
                step("row", 2, 13, Some(14)),
                step("audit", 1, 49, None),
            ],
        };

        let request = request(Resource::default(), &[trace], 1_000);

        let spans = &request.resource_spans[0].scope_spans[0].spans;
        let parents: Vec<_> = spans.iter().map(|span| span.parent_span_id.clone()).collect();
        assert_eq!(parents, [Vec::new(), spans[0].span_id.clone(), spans[1].span_id.clone(), spans[0].span_id.clone()]);
        assert!(spans.iter().all(|span| span.trace_id[..2] == [0x0a, 0xf7] && span.span_id.len() == 8));
        assert_eq!((spans[0].start_time_unix_nano, spans[0].end_time_unix_nano), (1_010_000, 1_050_000));
        assert_eq!(spans[3].end_time_unix_nano, 1_050_000);
    }
}
