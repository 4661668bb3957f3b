"""The undocumented parts of Celery, kombu and billiard that this package uses. No other module uses one.

Each module is about one subject: :mod:`.tasks`, :mod:`.scheduler`, and of workers :mod:`.pool`, :mod:`.slots`,
:mod:`.worker`, :mod:`.delivery` from the broker and :mod:`.messages` back to it; :mod:`.sending` is for tasks and
workers. ``tests/unit/contrib/celery/internals`` checks them in the installed Celery.

========================================================  ==========================================================
What is used                                              Without it
========================================================  ==========================================================
``consumer.on_task_request``                              no gate: tasks wait for their locks in their slots
``controller.semaphore``, ``process_task``                the pool's own queue gives the slots
``LaxBoundedSemaphore._waiting``                          a granted request waits behind those without a lock
``semaphore.release``, ``hub.call_soon``                  an error of a request costs another task its result
``hub.on_tick``; of the pool                              a pool that replaces its children is handed more tasks
``_all_inqueues``, ``_busy_workers``,                     than it has children, and their locks wait with them
``outbound_buffer``, ``_processes``,
``_fileno_to_inq``, ``_on_ready_counters``
``hub.consolidate_callback``, ``Pool._active_writes``     a task is written to its child one turn of the loop later
``Pool._waiting_to_start``                                a lock is released while its child starts
``QoS.callback``, ``QoS.prev``                            waiting requests use up the prefetch window
``perform_pending_operations``; ``QoS.can_consume`` of     a window of tasks in two seconds with gevent and eventlet
a virtual transport
``consumer.initial_prefetch_count``                       a worker keeps granted tasks for which it has no slots
``state.active_requests``, ``task_ready``                 no gate
``Request.__dict__``: ``on_accepted``, ``on_success``,    no gate
``on_failure``, ``on_timeout`` of one request
``Request._apply_result``, ``Pool._cache``                a job that Celery drops keeps its lock until the worker ends
``Request._on_reject``                                    with Redis messages that go back together change their order
``Consumer._active_tags`` of kombu                        a message of a topic exchange is rejected, not published
``QoS.restore_unacked`` of kombu's Redis transport        waiting tasks are delivered in reverse order after a shutdown
``Channel.visibility_timeout`` of a virtual transport     half an hour is assumed
``worker.wait_for_soft_shutdown``                         waiting tasks keep their places during a soft shutdown
``celery._state.get_current_task``, ``_task_stack``       no task and no ticket is found: tasks lock for themselves
``celery._state._get_active_apps``,                       a lock above ``@shared_task`` fails when it is decorated
``connect_on_app_finalize``, ``PromiseProxy.__then__``
``Task._orig_run`` and the closure of autoretry           autoretry retries conflicts; a warning says so
``Scheduler._heap``, ``_do_sync``                         an entry that another beat has sent keeps back the others
``celery.app.base`` around a body (``pydantic=True``)     such a task waits in its slot; the doctor says so
``Request.time_limits``, ``controller.time_limit``        a node does not show the time limit of its task
``pool.forking_enable``, ``is_green``                     the gate does not know the pool
========================================================  ==========================================================
"""
