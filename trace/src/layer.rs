//! The layer of a subscriber that writes traces down.

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Span, Subscriber};
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, Registry, SpanRef};

use crate::traces::{Place, Traces};
use crate::{is_no_part, now_us};

/// Writes the traces of the process that is called `by`, as [`sandpiper_protocol::trace::Step::by`] has it, into `traces`. Other
/// spans and events are as cheap as without it.
pub fn layer<S>(traces: &Traces, by: &'static str) -> impl Layer<S> + Send + Sync + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let filter = filter_fn(|metadata| !is_no_part(metadata)).with_max_level_hint(LevelFilter::INFO);
    TraceLayer { traces: traces.clone(), by }.with_filter(filter)
}

struct TraceLayer {
    traces: Traces,
    by: &'static str,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut named = Named::default();
        attributes.record(&mut named);
        let place = match named.id {
            Some(id) => Some(self.traces.begin(id, self.by, &named.name)),
            None => span.parent().and_then(|parent| place_of(&parent)).map(|above| above.step(self.by, &named.name)),
        };
        if let Some(place) = place {
            span.extensions_mut().insert(place);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let place = span.extensions_mut().remove::<Place>();
        if let Some(place) = place {
            place.end(now_us());
        }
    }
}

/// What `f` makes of the trace that the current span is part of.
pub(crate) fn current<T>(f: impl FnOnce(&Place) -> T) -> Option<T> {
    let place = Span::current().with_subscriber(|(id, dispatch)| {
        let span = dispatch.downcast_ref::<Registry>()?.span(id)?;
        place_of(&span)
    });
    place.flatten().as_ref().map(f)
}

/// The innermost place in a trace of a span and those around it.
fn place_of<'a, R: LookupSpan<'a>>(span: &SpanRef<'a, R>) -> Option<Place> {
    span.scope().find_map(|span| span.extensions().get::<Place>().cloned())
}

/// The fields of a span that is part of a trace.
#[derive(Default)]
struct Named {
    name: String,
    id: Option<String>,
}

impl Visit for Named {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "name" => value.clone_into(&mut self.name),
            "id" => self.id = Some(value.to_owned()),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}
