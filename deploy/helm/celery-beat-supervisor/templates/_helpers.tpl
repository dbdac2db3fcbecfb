{{- define "supervisor.fullname" -}}
{{- .Release.Name | trunc 20 | trimSuffix "-" -}}
{{- end -}}

{{- define "supervisor.selector" -}}
app.kubernetes.io/name: supervisor
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "supervisor.labels" -}}
{{ include "supervisor.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "supervisor.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "supervisor.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/*
The Deployment of a process. Given: root, name, role (beat, worker, serve), command, health, replicas,
single (never a second one), grace (seconds), resources.
*/}}
{{- define "supervisor.process" -}}
{{- $values := .root.Values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "supervisor.fullname" .root }}-{{ .name }}
  labels:
    {{- include "supervisor.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
    process: {{ .name }}
spec:
  {{- if not (kindIs "invalid" .replicas) }}
  replicas: {{ .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  strategy:
    type: {{ .single | ternary "Recreate" "RollingUpdate" }}
  selector:
    matchLabels:
      {{- include "supervisor.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
      process: {{ .name }}
  template:
    metadata:
      labels:
        {{- include "supervisor.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .role }}
        process: {{ .name }}
    spec:
      terminationGracePeriodSeconds: {{ .grace }}
      automountServiceAccountToken: false
      # A service named supervisor would make variables that begin as our own do.
      enableServiceLinks: false
      {{- with $values.imagePullSecrets }}
      imagePullSecrets: {{ toJson . }}
      {{- end }}
      {{- if eq .role "worker" }}
      # What jobs leave behind has to be reaped; celery does not do it.
      shareProcessNamespace: true
      {{- end }}
      {{- if eq .role "beat" }}
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "supervisor.selector" .root | nindent 14 }}
              app.kubernetes.io/component: {{ .role }}
              process: {{ .name }}
      {{- end }}
      securityContext:
        {{- include "supervisor.podSecurity" . | nindent 8 }}
      containers:
        - name: {{ .role }}
          image: {{ $values.image | default (printf "celery-beat-supervisor:%s" .root.Chart.AppVersion) | quote }}
          imagePullPolicy: {{ $values.imagePullPolicy }}
          command: {{ toJson .command }}
          env:
            - {name: SUPERVISOR_APP, value: {{ $values.app | quote }}}
            - {name: SUPERVISOR_SCHEDULES, value: /etc/supervisor/schedules}
            - {name: SUPERVISOR_LOG_FORMAT, value: json}
            {{- range $variable, $value := $values.env }}
            - {name: {{ $variable }}, value: {{ $value | replace "$(" "$$(" | quote }}}
            {{- end }}
            - name: SUPERVISOR_REDIS_URL
              valueFrom: {secretKeyRef: {name: {{ $values.secrets.redis }}, key: url}}
            # The broker, if the app names none. Without this key it is the app's own, or Redis.
            - name: CELERY_BROKER_URL
              valueFrom: {secretKeyRef: {name: {{ $values.secrets.redis }}, key: broker, optional: true}}
            {{- if eq .role "serve" }}
            - name: SUPERVISOR_TOKEN
              valueFrom: {secretKeyRef: {name: {{ $values.secrets.serve }}, key: token}}
            # Where serve sends a notice when no beat leads. Beat reads it from the secret of the jobs.
            - name: SUPERVISOR_NOTIFY
              valueFrom: {secretKeyRef: {name: {{ $values.secrets.serve }}, key: notify, optional: true}}
            {{- if $values.secrets.access }}
            - {name: SUPERVISOR_ACCESS_FILE, value: /etc/supervisor/access/access.yaml}
            {{- end }}
          ports:
            - {name: http, containerPort: 9809}
          livenessProbe:
            httpGet: {path: /healthz, port: http}
            periodSeconds: 15
            timeoutSeconds: 5
          readinessProbe:
            httpGet: {path: /readyz, port: http}
            periodSeconds: 15
            timeoutSeconds: 10
          {{- else }}
          # What ${NAME} in schedule files stands for.
          envFrom:
            - secretRef: {name: {{ $values.secrets.jobs }}, optional: true}
          # Rarely asked: each time starts a Python.
          startupProbe:
            exec: {command: {{ toJson .health }}}
            periodSeconds: 10
            timeoutSeconds: 15
            failureThreshold: 30
          livenessProbe:
            exec: {command: {{ toJson .health }}}
            periodSeconds: 60
            timeoutSeconds: 15
            failureThreshold: 3
          {{- end }}
          resources: {{ toJson .resources }}
          securityContext:
            {{- include "supervisor.containerSecurity" . | nindent 12 }}
          volumeMounts:
            - {name: state, mountPath: /var/lib/supervisor}
            - {name: tmp, mountPath: /tmp}
            {{- if eq .role "beat" }}
            # The directory and no subPath: only so is it exchanged when the ConfigMap changes.
            - {name: schedules, mountPath: /etc/supervisor/schedules, readOnly: true}
            {{- end }}
            {{- if and (eq .role "serve") $values.secrets.access }}
            - {name: access, mountPath: /etc/supervisor/access, readOnly: true}
            {{- end }}
      volumes:
        {{- if and (eq .role "worker") $values.stateClaim }}
        - {name: state, persistentVolumeClaim: {claimName: {{ $values.stateClaim }}}}
        {{- else }}
        - {name: state, emptyDir: {}}
        {{- end }}
        - {name: tmp, emptyDir: {}}
        {{- if eq .role "beat" }}
        - {name: schedules, configMap: {name: {{ include "supervisor.fullname" .root }}-schedules}}
        {{- end }}
        {{- if and (eq .role "serve") $values.secrets.access }}
        - {name: access, secret: {secretName: {{ $values.secrets.access }}}}
        {{- end }}
{{- end -}}

{{/* One pod of a process at a time is evicted. Given: root, name. */}}
{{- define "supervisor.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "supervisor.fullname" .root }}-{{ .name }}
  labels:
    {{- include "supervisor.labels" .root | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "supervisor.selector" .root | nindent 6 }}
      process: {{ .name }}
{{- end -}}
