// A dashboard of this project, as strictly as Grafana's published types allow: test_schema.py has the compiler
// hold the JSON files to `Checked`. Fields that no type knows are errors, and so are other kinds of panels.
import type { AnnotationQuery, Dashboard, DataQuery, DataSourceRef, FieldConfig, FieldConfigSource, Panel, RowPanel } from '@grafana/schema';
import type * as heatmap from '@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen';
import type * as stat from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
import type * as timeline from '@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen';
import type * as table from '@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen';
import type * as timeseries from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';

// In JSON an enumeration is its value.
type Json<T> = T extends string ? `${T}` : T extends number ? (`${T}` extends `${infer N extends number}` ? N : T)
  : T extends boolean | null | undefined ? T
  : T extends Array<infer U> ? Json<U>[] : T extends object ? { [K in keyof T]: Json<T[K]> } : T;

// Grafana's Prometheus query is not in the package: these are the fields of it that the dashboards use.
interface PrometheusQuery extends Omit<DataQuery, 'datasource' | 'queryType'> {
  datasource: DataSourceRef;
  expr: string;
  legendFormat: string;
  format: 'time_series' | 'table' | 'heatmap';
  instant: boolean;
  range: boolean;
  exemplar?: boolean;
}

type Of<Kind extends string, Options, Custom> = Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets' | 'title' | 'description'> & {
  type: Kind;
  title: string;
  description: string;
  options: Options;
  targets: PrometheusQuery[];
  fieldConfig: { defaults: Omit<FieldConfig, 'custom'> & { custom?: Partial<Custom> }; overrides: FieldConfigSource['overrides'] };
};

type Known =
  | Of<'timeseries', timeseries.Options, timeseries.FieldConfig>
  | Of<'stat', stat.Options, {}>
  | Of<'heatmap', heatmap.Options, heatmap.FieldConfig>
  | Of<'state-timeline', timeline.Options, timeline.FieldConfig>
  | Of<'table', table.Options, table.FieldConfig>;

// Nor are its annotations: these fields go beyond what every data source has.
interface PrometheusAnnotation extends Omit<AnnotationQuery, 'target'> {
  expr: string;
  step: string;
  titleFormat: string;
  textFormat: string;
  useValueForTime: boolean;
}

export type Checked = Json<Omit<Dashboard, 'panels' | 'annotations'> & {
  annotations: { list: PrometheusAnnotation[] };
  panels: Array<Known | (Omit<RowPanel, 'panels'> & { panels: Known[] })>;
}>;
