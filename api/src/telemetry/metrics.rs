//! Metrics of this process, from the text that Prometheus gets.

use std::collections::BTreeMap;

use jiff::Timestamp;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum,
};
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::text;

/// The metrics of a text, counted since `began`, as they are at `now`.
pub(super) fn request(
    resource: Resource,
    exposition: &str,
    began: Timestamp,
    now: Timestamp,
) -> ExportMetricsServiceRequest {
    let nanos = |time: Timestamp| u64::try_from(time.as_nanosecond()).unwrap_or_default();
    let metrics = families(exposition).into_iter().map(|family| family.metric(nanos(began), nanos(now))).collect();
    let scope = InstrumentationScope { name: "sandpiper".to_owned(), ..InstrumentationScope::default() };
    let scope_metrics = vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }];
    let resource_metrics = ResourceMetrics { resource: Some(resource), scope_metrics, ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![resource_metrics] }
}

/// A metric with all its samples.
#[derive(Debug, Default)]
struct Family<'a> {
    name: &'a str,
    help: &'a str,
    kind: &'a str,
    samples: Vec<Sample<'a>>,
}

#[derive(Debug)]
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

/// All metrics of an exposition. Lines that are none of ours are left out.
fn families(exposition: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    for line in exposition.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (Some(word), Some(name), Some(rest)) = (words.next(), words.next(), words.next()) else { continue };
            if families.last().is_none_or(|family| family.name != name) {
                families.push(Family { name, ..Family::default() });
            }
            let Some(family) = families.last_mut() else { continue };
            match word {
                "HELP" => family.help = rest,
                "TYPE" => family.kind = rest,
                _ => {}
            }
        } else if let (Some(family), Some(sample)) = (families.last_mut(), sample(line)) {
            family.samples.push(sample);
        }
    }
    families
}

/// `name{label="value",…} number`
fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, value) = rest.strip_prefix(',').unwrap_or(rest).split_once("=\"")?;
            let (value, behind) = quoted(value)?;
            labels.push((label, value));
            rest = behind;
        }
        rest = rest.strip_prefix('}')?;
    }
    Some(Sample { name, labels, value: rest.split_whitespace().next()?.parse().ok()? })
}

/// A text up to its closing quote, and what follows that.
fn quoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

impl Family<'_> {
    fn metric(&self, began: u64, now: u64) -> Metric {
        let temporality = AggregationTemporality::Cumulative.into();
        let data = match self.kind {
            "counter" => Data::Sum(Sum {
                data_points: self.numbers(began, now),
                aggregation_temporality: temporality,
                is_monotonic: true,
            }),
            "histogram" => Data::Histogram(Histogram {
                data_points: self.histograms(began, now),
                aggregation_temporality: temporality,
            }),
            _ => Data::Gauge(Gauge { data_points: self.numbers(0, now) }),
        };
        let (name, description) = (self.name.to_owned(), self.help.to_owned());
        Metric { name, description, data: Some(data), ..Metric::default() }
    }

    fn numbers(&self, start_time_unix_nano: u64, time_unix_nano: u64) -> Vec<NumberDataPoint> {
        let point = |sample: &Sample<'_>| NumberDataPoint {
            attributes: attributes(&sample.labels),
            start_time_unix_nano,
            time_unix_nano,
            value: Some(Value::AsDouble(sample.value)),
            ..NumberDataPoint::default()
        };
        self.samples.iter().map(point).collect()
    }

    fn histograms(&self, start_time_unix_nano: u64, time_unix_nano: u64) -> Vec<HistogramDataPoint> {
        let mut by_labels: BTreeMap<Vec<(&str, String)>, HistogramDataPoint> = BTreeMap::new();
        for sample in &self.samples {
            let (bounds, labels): (Vec<_>, Vec<_>) = sample.labels.iter().cloned().partition(|(name, _)| *name == "le");
            let point = by_labels.entry(labels).or_default();
            // Counts are of so many events that no digit is lost.
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let number = sample.value as u64;
            match sample.name.rsplit_once('_').map(|(_, part)| part) {
                Some("sum") => point.sum = Some(sample.value),
                Some("count") => point.count = number,
                Some("bucket") => {
                    // Those of Prometheus have what is below them, too.
                    let below: u64 = point.bucket_counts.iter().sum();
                    point.bucket_counts.push(number.saturating_sub(below));
                    let bound = bounds.first().and_then(|(_, bound)| bound.parse::<f64>().ok());
                    point.explicit_bounds.extend(bound.filter(|bound| bound.is_finite()));
                }
                _ => {}
            }
        }
        let points = by_labels.into_iter().map(|(labels, point)| HistogramDataPoint {
            attributes: attributes(&labels),
            start_time_unix_nano,
            time_unix_nano,
            ..point
        });
        points.collect()
    }
}

fn attributes(labels: &[(&str, String)]) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| text(name, value)).collect()
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family as Labelled;
    use prometheus_client::metrics::gauge::Gauge as PlainGauge;
    use prometheus_client::metrics::histogram::Histogram as PlainHistogram;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn counters_gauges_and_histograms_keep_their_meaning_and_their_labels() {
        let mut registry = Registry::with_prefix("sandpiper_api");
        let calls = Labelled::<Vec<(&'static str, &'static str)>, Counter>::default();
        calls.get_or_create(&vec![("route", "/v1/{id}"), ("odd", "a\"b\\c\nd")]).inc_by(3);
        let up = PlainGauge::<i64>::default();
        up.set(-2);
        let seconds = PlainHistogram::new([0.5, 1.0]);
        [0.1, 0.2, 0.7, 9.0].into_iter().for_each(|value| seconds.observe(value));
        registry.register("calls", "Calls", calls);
        registry.register("up", "Up", up);
        registry.register("seconds", "Durations", seconds);
        let mut exposition = String::new();
        encode(&mut exposition, &registry).unwrap();
        let at = |second| Timestamp::from_second(second).unwrap();

        let request = request(Resource::default(), &exposition, at(1), at(2));

        let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
        let names: Vec<_> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names, ["sandpiper_api_calls", "sandpiper_api_up", "sandpiper_api_seconds"]);
        let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{metrics:?}") };
        let point = &sum.data_points[0];
        assert_eq!((sum.is_monotonic, &point.value), (true, &Some(Value::AsDouble(3.0))));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (1_000_000_000, 2_000_000_000));
        assert_eq!(point.attributes, [text("route", "/v1/{id}"), text("odd", "a\"b\\c\nd")]);
        let Some(Data::Gauge(gauge)) = &metrics[1].data else { panic!("{metrics:?}") };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(-2.0)));
        let Some(Data::Histogram(histogram)) = &metrics[2].data else { panic!("{metrics:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, &point.bucket_counts, &point.explicit_bounds), (4, &vec![2, 1, 1], &vec![0.5, 1.0]));
        assert_eq!(point.sum, Some(10.0));
    }
}
