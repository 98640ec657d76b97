//! The dashboard's parts, read without Grafana.

use serde_json::Value;

use super::read;

/// A panel's query with Grafana's variables filled in.
#[derive(Debug)]
pub(super) struct Query {
    pub(super) panel: String,
    pub(super) expression: String,
}

/// All queries of all panels, over all jobs, instances and limits. A minute spans two scrapes, as Grafana's own
/// interval does.
pub(super) fn queries() -> Vec<Query> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "{title} asks nothing");
        targets.into_iter().map(move |target| Query { panel: title.clone(), expression: filled(&target["expr"]) })
    };
    panels.iter().flat_map(of_panel).collect()
}

/// Other mentions of metrics: variables and annotations, for which a quiet process has no data.
pub(super) fn mentions() -> Vec<String> {
    let dashboard = dashboard();
    let of = |list: &Value, header: &str| -> Vec<String> {
        let texts = list["list"].as_array().unwrap().iter().filter_map(|item| item[header].as_str().map(str::to_owned));
        texts.collect()
    };
    [of(&dashboard["templating"], "definition"), of(&dashboard["annotations"], "expr")].concat()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("dashboards/weir.json")).unwrap()
}

fn filled(expression: &Value) -> String {
    let expression = expression.as_str().unwrap();
    let filled = expression.replace("$__rate_interval", "1m");
    let filled = ["$job", "$instance", "$limit"].iter().fold(filled, |text, variable| text.replace(variable, ".*"));
    assert!(!filled.contains('$'), "a variable is not known here: {expression}");
    filled
}

/// Grafana shows an empty panel without an error if the data source or a position is wrong.
#[test]
fn panels_ask_the_data_source_that_the_reader_picks_and_lie_side_by_side() {
    let dashboard = dashboard();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let names: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["datasource", "job", "instance", "limit"]);
    let chosen = serde_json::json!({ "type": "prometheus", "uid": "${datasource}" });
    let (mut ids, mut taken) = (Vec::new(), std::collections::HashSet::new());
    for panel in dashboard["panels"].as_array().unwrap() {
        ids.push(panel["id"].as_u64().unwrap());
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!((&panel["datasource"], &target["datasource"]), (&chosen, &chosen), "{panel}");
        }
        let [x, y, width, height] = ["x", "y", "w", "h"].map(|side| panel["gridPos"][side].as_u64().unwrap());
        assert!(x + width <= 24, "{panel}");
        for place in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
            assert!(taken.insert(place), "two panels are at {place:?}: {panel}");
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "two panels have the same id");
}
