"""What Celery, kombu and billiard do not document, and this package replaces or uses. No module outside uses any of it.

- :mod:`.tasks`: tasks and their apps, for ``contrib.celery.tasks``, and for the gate when it hands a task over;
- :mod:`.scheduler`: beat, for ``contrib.celery.beat``;
- :mod:`.sending`: messages that tasks and workers send, for ``contrib.celery.retry`` and the gate;
- for the gate alone: the :mod:`.pool` of a worker and its :mod:`.slots`, the :mod:`.worker` itself, :mod:`.delivery` by
  the broker, and :mod:`.messages` that go back there.

Names without ``kombu`` or ``billiard`` are Celery's. They are those of Celery 5.4 to 5.7, or from the version in
parentheses on. ``tests/unit/contrib/celery/internals`` looks each of them up in the code that is installed. The last
column names the tests there, beside it or in ``tests/integration/celery`` that see whether it does what it did.

What is replaced, each in one object and not in its class:

=========================== ======================================== ============================= =====================
Here                        Of Celery                                Without it                    Noticed by
=========================== ======================================== ============================= =====================
worker.put_into             worker.consumer.consumer:                no gate: tasks wait for their test_gate_waiting
                            on_task_request                          locks in their slots
worker.put_into             worker.worker: wait_for_soft_shutdown    waiting tasks keep their      test_gate_ends
                            (5.5)                                    places during a soft shutdown
pool.take_callbacks         worker.request: on_accepted on_success   no gate: a lock is never      test_gate_ends
                            on_failure on_timeout                    released
pool.PartialResults         concurrency.asynpool: _result_handler    a child whose result is read  test_gate_broker_cuts
                            _recv_message _fileno_to_outq;           while the connection is lost
                            kombu.asynchronous.hub: add_reader;      gets no task any more, and a
                            billiard.process: _is_alive              shutdown does not end
slots.SemaphoreSlots        kombu.asynchronous.semaphore: release;   an error of a request costs   test_gate_slots
                            kombu.asynchronous.hub: call_soon        another task its result
                            propagate_errors
delivery.PrefetchWindow     kombu.common: callback prev value        waiting requests use up the   test_gate_waiting
                                                                     prefetch window
delivery.restore_in_order   kombu.transport.redis: restore_unacked   waiting tasks are delivered   test_gate_deliveries
                            restore_by_tag _delivered                in reverse order after a
                                                                     shutdown
messages.give_back          worker.request: _on_reject               with Redis messages that go   test_messages
                                                                     back together change their
                                                                     order
scheduler.plan_again        beat: _heap                              an entry that another beat    test_beat
                                                                     has sent keeps back the
                                                                     others
=========================== ======================================== ============================= =====================

Celery lets a task name a class of requests, ``Task.Request``, and that is no way to the four callbacks. Celery derives
a class of its own from it for each task, with an ``on_success`` that does not call the one it overrides. So one of the
four would be replaced as now, and the others would need a class for each class of an application, before it is known
which messages have a lock. What is replaced in the request calls what was there, also that of an application's class.

What is called, read or written:

=========================== ======================================== ============================= =====================
Here                        Of Celery                                Without it                    Noticed by
=========================== ======================================== ============================= =====================
tasks.current_task          _state: get_current_task                 no task and no ticket is      test_gate_holding
                                                                     found: tasks lock for
                                                                     themselves
tasks.delivered_task        _state: _task_stack                      a lock names another task as  test_tasks
                                                                     its holder
tasks.finalized_apps        _state: _get_active_apps                 a lock above `@shared_task`   test_tasks
                                                                     fails when it is decorated
tasks.on_app_finalize       _state: connect_on_app_finalize          as above                      test_tasks
tasks.when_evaluated        local: __then__                          a lock above `@app.task`      test_tasks
                                                                     fails when it is decorated
tasks.has_autoretry         app.autoretry: _orig_run                 autoretry retries conflicts   test_tasks
tasks.autoretry_options     app.autoretry: autoretry_for             autoretry retries conflicts;  test_tasks
                            dont_autoretry_for                       a warning says so
tasks.wraps_for_pydantic    app.base: pydantic_wrapper (5.5)         such a task waits in its      test_tasks_pydantic
                                                                     slot; the doctor says so
tasks.keep_headers          app.task: headers                        a retry sends a ticket, which test_tasks
                                                                     no message can contain
tasks.current_request       app.task: request_stack                  a key that is made from the   test_tasks
                                                                     request fails
scheduler.store_schedule    beat: _do_sync                           a beat that stops may send a  test_beat
                                                                     run once more
pool.is_prefork             concurrency.prefork: TaskPool            no gate                       test_gate_ends
pool.can_have_gate          concurrency.prefork: forking_enable;     the gate does not know the    test_pools
                            concurrency.base: is_green;              pool
                            concurrency.thread: TaskPool
pool.starts_children        concurrency.base: _pool;                 a lock is released while its  test_pool
                            concurrency.asynpool: _waiting_to_start  child starts
pool.has_lost_job           worker.request: _apply_result;           a job that Celery drops keeps test_gate_broker_cuts
                            billiard.pool: _cache _job               its lock until the worker
                                                                     ends
slots.slots_of              worker.worker: _process_task_sem;        the pool's own queue gives    test_gate_slots
                            worker.components: process_task          the slots
                            semaphore
slots.SemaphoreSlots        kombu.asynchronous.semaphore: _waiting   a granted request waits       test_gate_slots
                            value initial_value                      behind those without a lock
slots.SemaphoreSlots        kombu.asynchronous.hub: on_tick;         a pool that replaces its      test_gate_slots
                            concurrency.base: _pool;                 children is handed more tasks
                            concurrency.asynpool: _all_inqueues      than it has children, and
                            _busy_workers _fileno_to_inq             their locks wait with them
                            outbound_buffer;
                            billiard.pool: _processes
                            _on_ready_counters
slots.SemaphoreSlots        kombu.asynchronous.hub:                  a task is written to its      test_slots
                            consolidate_callback;                    child one turn of the loop
                            concurrency.asynpool: _active_writes     later
worker.is_ending            bootsteps: CLOSE TERMINATE state         the gate's thread outlives    test_gate_ends
                                                                     Celery's loop
worker.send_event           events.dispatcher: groups                no events of the gate, once   test_gate_events
                                                                     remote control has enabled
                                                                     those of tasks
worker.count_as_ended       worker.state: requests task_ready        no gate of threads and        test_worker
                                                                     greenlets
worker.is_active            worker.state: active_requests            a lock is released though its test_gate_broker_cuts
                                                                     task runs
worker.is_forgotten         worker.state: requests                   a node tells an operator to   test_operator
                                                                     revoke a task that Celery has
                                                                     forgotten
worker.time_limit           worker.request: time_limits;             a node does not show the time test_worker
                            worker.worker: time_limit                limit of its task
delivery.await_room         worker.consumer.consumer:                a window of tasks in two      test_delivery
                            perform_pending_operations;              seconds with gevent and
                            kombu.transport.virtual.base:            eventlet
                            can_consume
delivery.own_prefetch_count worker.consumer.consumer:                a worker keeps granted tasks  test_gate_surplus
                            initial_prefetch_count                   for which it has no slots
delivery.visibility_timeout kombu.transport.redis:                   half an hour is assumed       test_delivery
                            visibility_timeout
messages.queue_of           kombu.messaging: _active_tags            a message of a topic exchange test_messages
                                                                     is rejected, not published
sending.signature_again     kombu.transport.native_delayed_delivery: a task that RabbitMQ has      test_unavailable
                            MAX_NUMBER_OF_BITS_TO_USE (5.5)          delayed does not find its
                                                                     queue
=========================== ======================================== ============================= =====================
"""
